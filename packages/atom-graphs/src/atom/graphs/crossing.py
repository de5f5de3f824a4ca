"""What crosses a break: a region's arguments by address, and its result at the address it was recorded at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from atom.graphs.address import alias, ordinary
from atom.graphs.errors import RegionResultError
from atom.graphs.placement import Placement
from atom.graphs.recording import RegionNode
from atom.graphs.structure import fresh_containers, holds_mutable_container, map_tensors, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atom.graphs.pool import GraphPool
    from atom.graphs.region import Region


_SIMPLE = (torch.Tensor, int, float, str, type(None), torch.nn.Module)
"""A tensor, or what holds none that would have to be frozen; a module keeps its own."""


@dataclass(frozen=True)
class Sink:
    """Where one tensor of a region's result is to be found by the next segment."""

    tensor: torch.Tensor
    address: int
    bridged: bool
    """Whether each replay copies into it: the region made a tensor that nobody else holds."""
    in_argument: bool
    """Whether it lies in one of the region's arguments, which other code may still read."""


def frozen_call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], pool: GraphPool
) -> Callable[[], Any]:
    """`fn` on these arguments, tensors of the pool by address, callable any number of times.

    What lies outside of the pool is held as it is, so that it outlives whoever made it.
    """
    if not kwargs and all(isinstance(a, _SIMPLE) for a in args):
        return partial(fn, *[pool.view(a) if isinstance(a, torch.Tensor) else a for a in args])
    frozen_args = map_tensors(args, pool.view)
    frozen_kwargs = map_tensors(kwargs, pool.view)
    if holds_mutable_container(frozen_args) or holds_mutable_container(tuple(frozen_kwargs.values())):
        # The callee may write into a list or dict of tensors it was given; each call gets its own.
        given, named = fresh_containers(frozen_args), fresh_containers(frozen_kwargs)
        return lambda: fn(*fresh_containers(given), **fresh_containers(named))
    return partial(fn, *frozen_args, **frozen_kwargs)


class Crossing:
    """One region's passage: made before it runs, since it may change the containers it is given."""

    def __init__(
        self, region: Region, args: tuple[Any, ...], kwargs: dict[str, Any], pool: GraphPool
    ) -> None:
        self._region, self._pool = region, pool
        with ordinary():
            self._call = frozen_call(region.fn, args, kwargs, pool)
        if kwargs or not all(isinstance(a, _SIMPLE) for a in args):
            self.arguments = tensors_in((args, kwargs))
        else:
            self.arguments = [a for a in args if isinstance(a, torch.Tensor)]

    def bind(self, results: list[Any]) -> tuple[RegionNode, Callable[[], Any], Any]:
        """The region's node, its call at each replay, and its result for the next segment, once it has run.

        A result lying in an argument, or in memory that somebody else holds, keeps its address and costs
        nothing; a result the region made is placed in the pool, and each replay copies there.

        Args:
            results: The one result, taken out of the list: whether anybody else holds it can only be told
                once nobody here does.
        """
        if results[0] is None:
            return self._node(()), self._call, None
        with ordinary(), torch.no_grad():
            return self._bind(_aliased(results))

    def _bind(self, result: Any) -> tuple[RegionNode, Callable[[], Any], Any]:
        placed = _place(result, self.arguments, self._pool)
        handed = iter([sink.tensor for sink in placed])
        recorded = map_tensors(result, lambda _: next(handed))
        sinks = [Sink(self._pool.view(s.tensor), s.address, s.bridged, s.in_argument) for s in placed]
        return self._node(sinks), _deliverer(self._region.name, self._call, result, sinks), recorded

    def _node(self, sinks: Sequence[Sink]) -> RegionNode:
        return RegionNode(
            name=self._region.name,
            bucket_fixed=self._region.bucket_fixed,
            inputs=len(self.arguments),
            outputs=len(sinks),
            bridge_bytes=sum(s.tensor.numel() * s.tensor.element_size() for s in sinks if s.bridged),
        )


def _aliased(results: list[Any]) -> Any:
    """The result taken out of `results`, each tensor replaced by one of our own over the same memory."""
    return map_tensors(results.pop(), alias)


def _place(result: Any, arguments: Sequence[torch.Tensor], pool: GraphPool) -> list[Sink]:
    """A sink for each tensor of `result`, in order; what the region made is copied into the pool."""
    leaves = tensors_in(result)
    placement = Placement(pool, leaves)
    of_arguments = {t.untyped_storage().data_ptr() for t in arguments if t.numel()}
    sinks: list[Sink] = []
    for leaf in leaves:
        in_argument = leaf.untyped_storage().data_ptr() in of_arguments and leaf.numel() > 0
        bridged = leaf.numel() == 0 or not (in_argument or placement.held_elsewhere(leaf))
        recorded = placement.copy(leaf) if bridged and leaf.numel() else leaf
        sinks.append(Sink(recorded, recorded.data_ptr(), bridged, in_argument))
    return sinks


def _deliverer(name: str, call: Callable[[], Any], result: Any, sinks: Sequence[Sink]) -> Callable[[], Any]:
    """`call`, then its result taken to where the next segment reads; common forms pay for nothing else."""
    if not sinks:
        return call
    if not isinstance(result, torch.Tensor):
        return partial(_deliver_all, name, call, tuple(sinks))
    (sink,) = sinks
    return _deliver_copy(name, call, sink) if sink.bridged else _deliver_in_place(name, call, sink)


def _deliver_in_place(name: str, call: Callable[[], Any], sink: Sink) -> Callable[[], None]:
    address, tensor = sink.address, torch.Tensor

    def run() -> None:
        out = call()
        if not isinstance(out, tensor) or out.data_ptr() != address:
            _deliver(name, sink, out)

    return run


def _deliver_copy(name: str, call: Callable[[], Any], sink: Sink) -> Callable[[], None]:
    copy, shape, dtype, tensor = sink.tensor.copy_, sink.tensor.shape, sink.tensor.dtype, torch.Tensor

    def run() -> None:
        out = call()
        if isinstance(out, tensor) and out.shape == shape and out.dtype is dtype:
            copy(out)
        else:
            _deliver(name, sink, out)

    return run


def _deliver_all(name: str, call: Callable[[], Any], sinks: tuple[Sink, ...]) -> None:
    outs = tensors_in(call())
    if len(outs) != len(sinks):
        raise RegionResultError(
            f"region {name} returned {len(outs)} tensors where its recording has {len(sinks)}"
        )
    for sink, out in zip(sinks, outs, strict=True):
        if sink.bridged or out.data_ptr() != sink.address:
            _deliver(name, sink, out)


def _deliver(name: str, sink: Sink, out: object) -> None:
    """Takes a result to its recorded address; fewer rows than the recording has are padded with zeros."""
    to = sink.tensor
    if not isinstance(out, torch.Tensor):
        raise RegionResultError(
            f"region {name} returned {type(out).__name__} where its recording has a tensor"
        )
    if sink.in_argument:
        # Copying would overwrite the argument, which the model may go on to read.
        raise RegionResultError(
            f"region {name} returned part of an argument when it was recorded and now returns other memory; "
            "let it always return one or the other"
        )
    if out.dtype != to.dtype or out.dim() != to.dim():
        raise RegionResultError(_differs(name, to, out))
    if out.shape == to.shape:
        to.copy_(out)
        return
    rows = out.shape[0] if out.dim() else 0
    if not out.dim() or rows > to.shape[0] or out.shape[1:] != to.shape[1:]:
        raise RegionResultError(_differs(name, to, out))
    to[:rows].copy_(out)
    # Left alone, the padding would be whatever another bucket wrote there, NaN included.
    to[rows:].zero_()


def _differs(name: str, to: torch.Tensor, out: torch.Tensor) -> str:
    return (
        f"region {name} returned {out.dtype} {list(out.shape)} where its recording has {to.dtype} "
        f"{list(to.shape)}; only fewer rows are allowed"
    )
