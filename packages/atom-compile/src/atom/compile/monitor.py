"""How long compilation took."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atom.config import Config

__all__ = [
    "CompileMonitor",
    "compile_monitor",
    "end_monitoring_torch_compile",
    "start_monitoring_torch_compile",
]

logger = logging.getLogger(__name__)


@dataclass
class CompileMonitor:
    """Seconds spent on compilation in this process, by step; `compile_monitor` is the one in use."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Step ("trace", "backend", ...) -> seconds."""
    _started: float | None = None

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the time of the body to a step."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


compile_monitor = CompileMonitor()


def start_monitoring_torch_compile(vllm_config: Config) -> CompileMonitor:
    """Start the clock over; call before the first forward of a model.

    `end_monitoring_torch_compile` logs what was measured. Without either, times are kept all the same.
    """
    compile_monitor.seconds.clear()
    compile_monitor._started = time.perf_counter()
    return compile_monitor


def end_monitoring_torch_compile(vllm_config: Config) -> float:
    """Log the time spent since `start_monitoring_torch_compile` and return it, in seconds."""
    if compile_monitor._started is None:
        return 0.0
    total = sum(compile_monitor.seconds.values())
    level = vllm_config.compilation_config.level
    steps = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in compile_monitor.seconds.items())
    logger.info("torch.compile at level %d took %.2f s (%s)", level, total, steps or "nothing compiled")
    compile_monitor._started = None
    return total
