"""What a tape refuses: what a device capture would refuse too, or freeze without a word."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from atom.graphs.errors import TapeRefusedError
from atom.graphs.generators import is_registered
from atom.graphs.marks import is_host_data
from atom.graphs.structure import tensors_in
from atom.graphs.tape_modes import OURS

if TYPE_CHECKING:
    from types import FrameType

_WHY = "the host would read this once and never again; make it a region"


def source_line() -> str:
    """The innermost line outside of torch and this package, as `file:line in function`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(OURS) and not name.startswith("<"):
            return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return "no line of Python"


def refuse(what: str, why: str) -> TapeRefusedError:
    """The error, ready to be raised."""
    return TapeRefusedError(f"{what} at {source_line()}: {why}")


def check_host_read(method: str, tensor: torch.Tensor, args: tuple[Any, ...]) -> None:
    """Refuses calls that never reach a dispatcher: reads by the host, and raw addresses.

    Raises:
        TapeRefusedError: with method and source line.
    """
    if is_host_data(tensor):
        return
    if method == "data_ptr":
        raise refuse(
            "Tensor.data_ptr",
            "a tape cannot see what runs at a raw address; wrap the call in opaque_call or an op",
        )
    if method == "to":
        if "cpu" in [a for a in args if isinstance(a, str)]:
            raise refuse("Tensor.to('cpu')", _WHY)
        return
    raise refuse(f"Tensor.{method}", _WHY)


def check_op(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses ops whose replay would not be what eager does.

    Raises:
        TapeRefusedError: with op and source line.
    """
    tags = func.tags
    if torch.Tag.data_dependent_output in tags:
        raise refuse(str(func), _WHY)
    if func is torch.ops.aten.lift_fresh.default:
        raise refuse(str(func), "a tensor made from host data here keeps the values of the recording")
    if func in _INDEXING:
        if any(t.dtype in (torch.bool, torch.uint8) for t in tensors_in(args[1])):
            raise refuse(
                f"{func} with a mask", "its shape depends on data; use torch.where or make it a region"
            )
    elif torch.Tag.dynamic_output_shape in tags:
        raise refuse(str(func), "its shape depends on data; make it a region")
    if torch.Tag.nondeterministic_seeded in tags and _draws(func, args, kwargs):
        generator = kwargs.get("generator")
        if generator is None:
            generator = torch.default_generator
        if not is_registered(generator):
            raise refuse(str(func), "random numbers from a generator without register_generator()")


_INDEXING = frozenset(
    (
        torch.ops.aten.index.Tensor,
        torch.ops.aten.index_put.default,
        torch.ops.aten.index_put_.default,
        torch.ops.aten._index_put_impl_.default,
    )
)


def _draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the op draws at all: with a dropout probability of 0, or outside training, it does not."""
    for at, argument in enumerate(func._schema.arguments):
        if argument.name in ("dropout_p", "p", "dropout", "train", "training"):
            value = kwargs.get(argument.name, args[at] if at < len(args) else argument.default_value)
            if not value:
                return False
    return True
