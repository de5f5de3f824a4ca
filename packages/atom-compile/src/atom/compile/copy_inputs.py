"""Static buffers for inputs whose address a recorded graph has frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from atom.compile.errors import ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["copying_inputs"]


def copying_inputs(
    call: Callable[..., Any], fake_inputs: Sequence[Any], *, max_rows: int
) -> Callable[..., Any]:
    """`call`, with each input whose first dimension varies copied into a buffer of its own first.

    Buffers are made at the first call and never move.

    Args:
        fake_inputs: what `call` was traced with; tells which inputs vary.
        max_rows: length of the buffers.

    Raises:
        ShapeError: by the result, for an input of more rows.
    """
    varying = [
        index
        for index, value in enumerate(fake_inputs)
        if isinstance(value, torch.Tensor) and value.ndim > 0 and isinstance(value.shape[0], torch.SymInt)
    ]
    buffers: dict[int, torch.Tensor] = {}

    def copy_and_call(*args: Any) -> Any:
        static = list(args)
        for index in varying:
            value = args[index]
            rows = value.shape[0]
            if rows > max_rows:
                raise ShapeError(f"input {index} has {rows} rows; static buffers hold {max_rows}")
            if index not in buffers:
                buffers[index] = value.new_empty((max_rows, *value.shape[1:]))
            static[index] = buffers[index][:rows]
            static[index].copy_(value)
        return call(*static)

    return copy_and_call
