"""The tape: a recorder for every device, by writing down each dispatched op and replaying the list.

It keeps the promises of a device graph, so that a machine without one can prove how a model records: Python
does not run again, addresses are fixed, and a tensor from outside is read at its recorded address.
"""

from __future__ import annotations

import gc
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from atom.graphs import recorder
from atom.graphs.bound_calls import bound
from atom.graphs.crossing import Crossing, frozen_call
from atom.graphs.errors import RegionRefusedError, TapeRefusedError
from atom.graphs.inlining import check_inline
from atom.graphs.marks import host_data, is_host_data
from atom.graphs.placement import Placement
from atom.graphs.pool import arena_pool, with_index
from atom.graphs.recording import Node, Recording, Segment, replayer
from atom.graphs.structure import map_tensors, tensors_in
from atom.graphs.tape_modes import OpMode, op_mode, watching_host_reads, without_op_mode
from atom.graphs.tape_refusals import check_host_read, check_op, refuse, source_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atom.graphs.pool import ArenaPool
    from atom.graphs.region import Region
    from atom.graphs.turns import Turns

_ALLOCATIONS = frozenset(
    (
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.new_empty_strided.default,
    )
)
"""Ops that only give memory: on a replay it is there already, with whatever was in it."""


@dataclass
class _Op:
    """An op being run: whether its implementation turned out to be a region."""

    func: Any
    tensors: list[torch.Tensor]
    region: Region | None = None


@dataclass
class _Tape:
    """One recording under way."""

    breaks: bool
    nodes: list[Node] = field(default_factory=list)
    calls: list[Callable[[], Any]] = field(default_factory=list)
    ops: list[Callable[[], Any]] = field(default_factory=list)
    """Of the segment under way."""
    held: list[Any] = field(default_factory=list)
    """What bound calls of the segment under way read and write."""
    running: list[_Op] = field(default_factory=list)
    inlined: list[str] = field(default_factory=list)
    inside_opaque: bool = False
    place: str = "node 0 (first segment)"
    before: set[int] = field(default_factory=set)
    """Blocks of the pool that were held when the recording began."""
    pinned: set[int] = field(default_factory=set)
    """Blocks given to regions, which may keep them from one region to the next."""


class TapeRecorder:
    """Records on any device; see `Recorder`."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = with_index(torch.device(device))
        self._pool = arena_pool(self._device)
        self._op_mode: OpMode = op_mode(self)
        self._modes = ExitStack()
        self._tape = _Tape(breaks=True)

    @property
    def pool(self) -> ArenaPool:
        return self._pool

    def begin(self, *, breaks: bool, turns: Turns | None = None) -> None:
        self._tape = _Tape(breaks=breaks, before=set(self._pool.arena.live))
        self._op_mode = op_mode(self)
        self._modes.enter_context(watching_host_reads(self))
        self._modes.enter_context(self._op_mode)

    def seal(self, result: Any) -> Any:
        self._end_segment()
        self._modes.close()
        return map_tensors(result, self._pool.view)

    def finish(self, name: str, result: Any) -> Recording:
        tape, self._tape = self._tape, _Tape(breaks=True)
        self._check_nothing_persists(tape)
        return Recording(
            name=name,
            nodes=tuple(tape.nodes),
            calls=tuple(tape.calls),
            replay=replayer(tape.calls, result),
            pool=self._pool,
            result=result,
            inlined=tuple(tape.inlined),
        )

    def abort(self) -> str:
        place = self._tape.place
        self._modes.close()
        self._tape = _Tape(breaks=True)
        return place

    def region(self, region: Region, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tape = self._tape
        if tape.running:
            tape.running[-1].region = region
            self._check_op_is_region(tape.running[-1], region, args, kwargs)
        if not tape.breaks:
            return self._inline(region, args, kwargs)
        if tape.inside_opaque:
            return region.fn(*args, **kwargs)
        self._end_segment()
        tape.place = f"node {len(tape.nodes)} (region {region.name})"
        with recorder.suspended(), without_op_mode(self._op_mode):
            crossing = Crossing(region, args, kwargs, self._pool)
            tape.pinned.update(t.untyped_storage().data_ptr() for t in crossing.arguments)
            results = [region.fn(*args, **kwargs)]
            self._pool.arena.maker = f"region {region.name}, called at {source_line()}"
            node, call, recorded = crossing.bind(results)
        tape.nodes.append(node)
        tape.calls.append(call)
        tape.place = f"node {len(tape.nodes)} (segment after region {region.name})"
        return recorded

    def opaque(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tape = self._tape
        outer, tape.inside_opaque = tape.inside_opaque, True
        try:
            with without_op_mode(self._op_mode):
                if outer:
                    return fn(*args, **kwargs)
                call = frozen_call(fn, args, kwargs, self._pool)
                inputs = tensors_in((args, kwargs))
                result = fn(*args, **kwargs)
                name = getattr(fn, "__qualname__", type(fn).__name__)
                return self._write_down(name, lambda: call, inputs, result)
        finally:
            tape.inside_opaque = outer

    def on_host_read(self, method: str, tensor: torch.Tensor, args: tuple[Any, ...]) -> None:
        """Called before a tensor method that the host reads through; regions, ops and pieces may."""
        if recorder.active is self and not self._tape.running and not self._tape.inside_opaque:
            check_host_read(method, tensor, args)

    def on_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called by the dispatch mode, in place of `func`."""
        tensors = tensors_in((args, kwargs))
        if tensors and all(self._on_host(t) for t in tensors):
            return self._host_op(func, args, kwargs)
        check_op(func, args, kwargs)
        op = _Op(func, tensors)
        self._tape.running.append(op)
        try:
            result = func(*args, **kwargs)
        finally:
            self._tape.running.pop()
        if op.region is not None:
            return result
        if func in _ALLOCATIONS:
            return self._write_down(str(func), None, tensors, result)
        fn = partial(_then_wait, func) if func.namespace == "c10d" else func
        # Collectives write without saying so in their schema; other libraries' ops may do so too.
        effects = func._schema.is_mutable or func.namespace not in ("aten", "prims")
        if not effects and not self._made(result, tensors):
            return result  # a view: its address is as fixed as its base's
        freeze = partial(frozen_call, fn, args, kwargs, self._pool)
        again = None if kwargs else partial(self._bound, func, args)
        return self._write_down(str(func), freeze, tensors, result, again)

    def _bound(
        self, func: Any, args: tuple[Any, ...], results: list[torch.Tensor]
    ) -> Callable[[], Any] | None:
        frozen = map_tensors(args, self._pool.view)
        with recorder.suspended():  # it may ask for addresses
            call = bound(func, frozen, results)
        if call is not None:
            self._tape.held.append((frozen, results))
        return call

    def _on_host(self, tensor: torch.Tensor) -> bool:
        return is_host_data(tensor) or tensor.device.type != self._device.type

    def _host_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An op on host data: it runs now, and what it gives is host data too."""
        result = func(*args, **kwargs)
        from_elsewhere = any(t.device.type != self._device.type for t in tensors_in((args, kwargs)))
        if from_elsewhere and any(t.device.type == self._device.type for t in tensors_in(result)):
            raise refuse(str(func), "it takes data from the host, which keeps the values of the recording")
        return map_tensors(result, host_data)

    def _inline(self, region: Region, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        check_inline(region)
        tape = self._tape
        tape.inlined.append(region.name)
        if not tape.running:
            return region.fn(*args, **kwargs)
        # Inside of an op torch has taken the mode off: put it back, so that the body's own ops are written
        # down.
        running, tape.running = tape.running, []
        try:
            with self._op_mode:
                return region.fn(*args, **kwargs)
        finally:
            tape.running = running

    def _check_op_is_region(
        self, op: _Op, region: Region, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        given = [t.data_ptr() for t in tensors_in((args, kwargs))]
        if given != [t.data_ptr() for t in op.tensors]:
            raise RegionRefusedError(
                f"op {op.func} does more than call region {region.name}: mark the op's own implementation "
                "with @eager_region"
            )

    def _made(self, result: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors of a result that lie in no input."""
        of_inputs = {t.untyped_storage().data_ptr() for t in inputs if t.numel()}
        return [
            t for t in tensors_in(result) if t.numel() and t.untyped_storage().data_ptr() not in of_inputs
        ]

    def _write_down(
        self,
        name: str,
        freeze: Callable[[], Callable[[], Any]] | None,
        inputs: Sequence[torch.Tensor],
        result: Any,
        again: Callable[[list[torch.Tensor]], Callable[[], Any] | None] | None = None,
    ) -> Any:
        """Notes a call that has just run; what it made moves to the pool, where each replay puts it again.

        Without `freeze` there is nothing to make again: the call only gave memory. `again` may have a call
        that makes results where they lie.
        """
        outs = tensors_in(result)
        if outs and all(t.device.type != self._device.type for t in outs):
            return result
        made = self._made(result, inputs)
        if any(t.layout is not torch.strided for t in made):
            raise refuse(name, "its result is not a strided tensor")
        self._pool.arena.maker = f"{name} at {source_line()}"
        placement = Placement(self._pool, made)
        placed = {id(t): placement.copy(t) for t in made}
        if freeze is not None:
            sinks = [self._pool.view(placed[id(t)]) if id(t) in placed else None for t in outs]
            in_place = again([t for t in sinks if t is not None]) if again is not None else None
            self._tape.ops.append(_taped(freeze(), result, sinks) if in_place is None else in_place)
        return map_tensors(result, lambda t: placed.get(id(t), t))

    def _end_segment(self) -> None:
        tape = self._tape
        if tape.ops:
            tape.nodes.append(Segment(len(tape.ops), "ops"))
            tape.calls.append(partial(_run, tuple(tape.ops), tape.held))
            tape.ops, tape.held = [], []

    def _check_nothing_persists(self, tape: _Tape) -> None:
        exempt = tape.before | tape.pinned
        if not set(self._pool.arena.live) <= exempt:
            gc.collect()
        kept = [maker for address, maker in self._pool.arena.live.items() if address not in exempt]
        if kept:
            raise TapeRefusedError(
                f"{kept[0]}: its result outlives the recording, and every replay would overwrite it; return "
                "it from "
                "the forward, or write it to a buffer made before"
            )


def _run(ops: tuple[Callable[[], Any], ...], held: list[Any]) -> None:
    for op in ops:
        op()


def _taped(call: Callable[[], Any], result: Any, sinks: Sequence[torch.Tensor | None]) -> Callable[[], Any]:
    """`call`, then what it made copied to where the recording reads it."""
    if all(sink is None for sink in sinks):
        return call
    if isinstance(result, torch.Tensor) and sinks[0] is not None:
        copy = sinks[0].copy_

        def run_one() -> None:
            copy(call())

        return run_one
    kept = tuple(sinks)

    def run() -> None:
        for out, sink in zip(tensors_in(call()), kept, strict=True):
            if sink is not None:
                sink.copy_(out)

    return run


def _then_wait(func: Any, *args: Any, **kwargs: Any) -> Any:
    """A collective op, waited for: what `torch.distributed` waits on lies above the dispatcher."""
    result = func(*args, **kwargs)
    for item in result if isinstance(result, (tuple, list)) else (result,):
        if isinstance(item, torch.ScriptObject):
            torch._C._distributed_c10d.Work.unbox(item).wait()
    return result
