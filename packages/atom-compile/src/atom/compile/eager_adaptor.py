"""A compiler that generates no code: graphs run as they were traced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import fx

    from atom.compile.compiler_protocol import CompiledCallable
    from atom.config import Config

__all__ = ["EagerAdaptor"]


class EagerAdaptor:
    """Runs each piece op by op; for `use_inductor=False` and for looking at a split without a compiler.

    There is nothing to save, so nothing is cached on disk.
    """

    name = "eager"

    def initialize_cache(self, cache_dir: Path, disable_cache: bool = False, prefix: str = "") -> None:
        return None

    def compute_hash(self, vllm_config: Config) -> str:
        return ""

    def compile(
        self,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        compiler_config: dict[str, Any],
        runtime_shape: int | None = None,
        key: str | None = None,
    ) -> tuple[CompiledCallable, Path | None]:
        return graph.forward, None

    def load(
        self,
        handle: Path,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        graph_index: int,
        runtime_shape: int | None = None,
    ) -> CompiledCallable:
        return graph.forward
