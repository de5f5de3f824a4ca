"""Tensors inside tuples, lists, dicts and dataclasses: what may cross a region."""

from __future__ import annotations

import copy
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def map_tensors(value: Any, fn: Callable[[torch.Tensor], Any]) -> Any:
    """`value` with `fn` applied to each tensor in it.

    Containers are rebuilt only where something in them changed, so that an object without tensors keeps its
    identity.
    """
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, tuple):
        items = [map_tensors(v, fn) for v in value]
        if all(a is b for a, b in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        items = [map_tensors(v, fn) for v in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    if isinstance(value, dict):
        mapped = {k: map_tensors(v, fn) for k, v in value.items()}
        if all(mapped[k] is v for k, v in value.items()):
            return value
        changed = copy.copy(value)
        changed.update(mapped)
        return changed
    if is_dataclass(value) and not isinstance(value, type):
        return _map_dataclass(value, fn)
    return value


def _map_dataclass(value: Any, fn: Callable[[torch.Tensor], Any]) -> Any:
    changed: dict[str, Any] = {}
    for f in fields(value):
        if hasattr(value, f.name):
            before = getattr(value, f.name)
            after = map_tensors(before, fn)
            if after is not before:
                changed[f.name] = after
    if not changed:
        return value
    rebuilt = copy.copy(value)
    for name, after in changed.items():
        object.__setattr__(rebuilt, name, after)  # frozen dataclasses too
    return rebuilt


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor in `value`, in the order `map_tensors` visits them."""
    found: list[torch.Tensor] = []

    def note(t: torch.Tensor) -> torch.Tensor:
        found.append(t)
        return t

    map_tensors(value, note)
    return found


def holds_mutable_container(value: Any) -> bool:
    """Whether a tensor of `value` sits in a container that a callee could change under our hands."""
    if isinstance(value, tuple):
        return any(holds_mutable_container(v) for v in value)
    if isinstance(value, torch.Tensor):
        return False
    return bool(tensors_in(value))


def fresh_containers(value: Any) -> Any:
    """`value` with every container that holds tensors copied, the tensors themselves shared."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, tuple):
        items = [fresh_containers(v) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [fresh_containers(v) for v in value]
    if isinstance(value, dict):
        same_kind = copy.copy(value)
        same_kind.update({k: fresh_containers(v) for k, v in value.items()})
        return same_kind
    if is_dataclass(value) and not isinstance(value, type) and tensors_in(value):
        made: Any = copy.copy(value)
        for f in fields(value):
            if hasattr(value, f.name):
                object.__setattr__(made, f.name, fresh_containers(getattr(value, f.name)))
        return made
    return value


def span(t: torch.Tensor) -> int:
    """Bytes from the first element of `t` to the end of its last."""
    if t.numel() == 0:
        return 0
    reach = sum((size - 1) * stride for size, stride in zip(t.size(), t.stride(), strict=True))
    return (reach + 1) * t.element_size()
