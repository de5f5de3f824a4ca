"""A finished recording: nodes in order, and how to replay them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atom.graphs.pool import GraphPool


@dataclass(frozen=True)
class Segment:
    """Device work between two regions, replayed without the host's help."""

    work: int | None
    """Taped ops, or nodes of the device graph; None where the driver does not tell."""
    unit: str
    """`"ops"` or `"nodes"`."""


@dataclass(frozen=True)
class RegionNode:
    """A region's place in a recording."""

    name: str
    bucket_fixed: bool
    inputs: int
    """Tensors it reads from the recording."""
    outputs: int
    """Tensors it hands to the next segment."""
    bridge_bytes: int
    """Bytes copied to the address the next segment reads; 0 for results written in place."""


Node = Segment | RegionNode


@dataclass
class Recording:
    """What a recorder made of one forward at one bucket."""

    name: str
    nodes: tuple[Node, ...]
    calls: tuple[Callable[[], Any], ...]
    """One a node, in order."""
    replay: Callable[[], Any] = field(repr=False)
    """Runs every node and returns `result`."""
    pool: GraphPool
    result: Any
    """The forward's result: tensors at fixed addresses, valid until the next replay in the pool."""
    inlined: tuple[str, ...] = ()
    """Bucket-fixed regions recorded without a break."""
    seconds: float = 0.0
    """Time the recording took."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(n for n in self.nodes if isinstance(n, Segment))

    @property
    def regions(self) -> tuple[RegionNode, ...]:
        return tuple(n for n in self.nodes if isinstance(n, RegionNode))

    @property
    def bucket_fixed(self) -> bool:
        """Whether a request graph could hold all of it: every region declares its launches bucket-fixed."""
        return all(r.bucket_fixed for r in self.regions)


def replayer(calls: Sequence[Callable[[], Any]], result: Any) -> Callable[[], Any]:
    """A function that runs `calls` in order and returns `result`, with no more than that around them."""
    if len(calls) == 1:
        (only,) = calls

        def replay_one() -> Any:
            only()
            return result

        return replay_one

    steps = tuple(calls)
    grad_enabled, set_grad = torch.is_grad_enabled, torch._C._set_grad_enabled

    def replay() -> Any:
        if grad_enabled():
            # A region must not extend an autograd graph through buffers that every replay overwrites.
            set_grad(False)
            try:
                for step in steps:
                    step()
            finally:
                set_grad(True)
        else:
            for step in steps:
                step()
        return result

    return replay
