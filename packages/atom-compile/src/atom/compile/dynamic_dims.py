"""Which dimensions of a forward's arguments vary from step to step."""

from __future__ import annotations

import inspect
import types
import typing
from typing import Any

import torch

from atom.compile.errors import DynamicDimsError

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["DynamicArgDims", "infer_dynamic_arg_dims", "normalize_dynamic_arg_dims"]

DynamicArgDims = dict[str, tuple[int, ...]]
"""Argument name of a forward -> its dynamic dimensions (negative ones count from the last)."""


def infer_dynamic_arg_dims(forward: Callable[..., Any]) -> DynamicArgDims:
    """Dimension 0 (the batch) of every argument annotated as a tensor, optional ones included.

    Raises:
        DynamicDimsError: no argument is annotated as a tensor.
    """
    hints = _annotations(forward)
    dims: DynamicArgDims = {name: (0,) for name in _argument_names(forward) if _is_tensor(hints.get(name))}
    if not dims:
        raise DynamicDimsError(
            f"{forward.__qualname__}: no argument is annotated as torch.Tensor, so the batch dimension is "
            "unknown; annotate the forward or pass dynamic_arg_dims={'name': 0}"
        )
    return dims


def normalize_dynamic_arg_dims(
    forward: Callable[..., Any], dims: Mapping[str, int | Sequence[int]]
) -> DynamicArgDims:
    """`dims` as given by a user, checked against the forward's arguments.

    Raises:
        DynamicDimsError: empty, or a name that the forward does not take.
    """
    names = _argument_names(forward)
    unknown = sorted(set(dims) - set(names))
    if unknown or not dims:
        raise DynamicDimsError(
            f"dynamic_arg_dims names {unknown or 'nothing'}, but {forward.__qualname__} takes {names}"
        )
    return {name: (dim,) if isinstance(dim, int) else tuple(dim) for name, dim in dims.items()}


def _argument_names(forward: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(forward).parameters if name != "self"]


def _annotations(forward: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(forward)
    except NameError:  # a type imported for type checkers only: the others still tell what they are
        return dict(inspect.get_annotations(forward))


def _is_tensor(annotation: Any) -> bool:
    if isinstance(annotation, str):
        names = {part.strip().removeprefix("torch.") for part in annotation.split("|")}
        return (names <= {"Tensor", "None"} and "Tensor" in names) or annotation == "Optional[torch.Tensor]"
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [arg for arg in typing.get_args(annotation) if arg is not type(None)]
        return bool(members) and all(_is_tensor(arg) for arg in members)
    return isinstance(annotation, type) and issubclass(annotation, torch.Tensor)
