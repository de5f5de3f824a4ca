"""Random generators that a recording may draw from: each replay advances them, nothing freezes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atom.graphs.pool import with_index

if TYPE_CHECKING:
    import torch

_registered: dict[int, torch.Generator] = {}
"""By the address of the state: torch hands the same generator to an op as another object."""


def register_generator(generator: torch.Generator) -> torch.Generator:
    """Allows recordings made from now on to draw from `generator`.

    On a device its state is registered with each segment; the device's default generator always is.
    """
    _registered[_state(generator)] = generator
    return generator


def is_registered(generator: torch.Generator) -> bool:
    """Whether `register_generator` was told of it."""
    return _state(generator) in _registered


def registered_generators(
    device: torch.device, *, but: torch.Generator | None = None
) -> list[torch.Generator]:
    """The registered generators that live on `device`, `but` one."""
    other_than = None if but is None else _state(but)
    return [g for key, g in _registered.items() if with_index(g.device) == device and key != other_than]


def _state(generator: Any) -> int:
    return int(generator._cdata)
