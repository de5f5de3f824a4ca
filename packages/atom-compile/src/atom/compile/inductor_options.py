"""Options and surroundings that both Inductor adaptors share."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["inductor_folder", "options_for", "settle_cpu_instructions"]

_SEARCH = {"max_autotune": True, "coordinate_descent_tuning": True}
"""What a specific shape is worth on a GPU: it is compiled once and launched every step."""


def options_for(
    compiler_config: dict[str, Any], runtime_shape: int | None, example_inputs: Sequence[Any]
) -> dict[str, Any]:
    """The Inductor options of one compilation; what the user set wins."""
    on_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in example_inputs)
    return (_SEARCH if runtime_shape is not None and on_gpu else {}) | compiler_config


@contextlib.contextmanager
def inductor_folder(folder: Path) -> Iterator[None]:
    """Send Inductor's and Triton's own cache files to `folder` while the body runs.

    Private to this process, so that neither leftovers of other runs nor processes that compile the same
    thing at the same moment can get in the way.
    """
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def settle_cpu_instructions(example_inputs: Sequence[Any]) -> None:
    """Find out which vector instructions this CPU has while Inductor's own folder is still in use.

    It is found by compiling test programs whose results stay there for later processes.
    """
    if any(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in example_inputs):
        from torch._inductor.cpu_vec_isa import pick_vec_isa

        pick_vec_isa()
