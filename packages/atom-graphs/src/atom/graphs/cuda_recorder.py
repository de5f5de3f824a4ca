"""Segments as device graphs (CUDA and HIP), in the pool every recording on the device shares."""

from __future__ import annotations

import warnings
from contextlib import ExitStack, suppress
from ctypes import c_void_p
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from atom.graphs.crossing import Crossing
from atom.graphs.driver import begin_capture, node_counter
from atom.graphs.generators import registered_generators
from atom.graphs.inlining import check_inline
from atom.graphs.launch import Launch, replayer
from atom.graphs.pool import cuda_pool, with_index
from atom.graphs.recorder import suspended
from atom.graphs.recording import Node, Recording, Segment
from atom.graphs.streams import StreamWatch, observing
from atom.graphs.structure import map_tensors
from atom.graphs.turns import Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom.graphs.pool import CUDAPool
    from atom.graphs.region import Region
    from atom.graphs.turns import Turns


@dataclass
class _Capture:
    """One recording under way."""

    breaks: bool
    nodes: list[Node] = field(default_factory=list)
    calls: list[Callable[[], Any]] = field(default_factory=list)
    inlined: list[str] = field(default_factory=list)
    generators: list[torch.Generator] = field(default_factory=list)
    """What it may draw from: the device's default, which torch registers itself, then those registered."""
    graph: torch.cuda.CUDAGraph | None = None
    """Of the segment being captured; None while a region runs."""
    place: str = "node 0 (first segment)"
    turns: Turns | None = None
    """Where its segments may borrow executables."""
    loads: list[tuple[c_void_p, c_void_p]] = field(default_factory=list)
    """What it would load on its turn: (executable, graph)."""


class CUDARecorder:
    """Records on one device; see `Recorder`.

    Every recording of a device is captured on one stream, since the allocator keeps blocks by stream. A
    segment is launched as soon as it is captured, so that the region behind it runs on true data.
    """

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self._device = with_index(torch.device(device))
        self._stream = cuda_pool(self._device).stream
        self._count_nodes = node_counter(self._stream)
        self._contexts = ExitStack()
        self._capture = _Capture(breaks=True)
        self._watch = StreamWatch(self._stream)

    @property
    def pool(self) -> CUDAPool:
        return cuda_pool(self._device)

    def begin(self, *, breaks: bool, turns: Turns | None = None) -> None:
        default = torch.cuda.default_generators[self._device.index]
        generators = [default, *registered_generators(self._device, but=default)]
        shared = None if turns is None else turns.on(self._device)
        self._capture = _Capture(breaks=breaks, generators=generators, turns=shared)
        caller = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(caller)
        self._contexts.callback(caller.wait_stream, self._stream)
        self._contexts.enter_context(torch.cuda.device(self._device))
        self._contexts.enter_context(torch.cuda.stream(self._stream))
        self.pool.prepare_thread()
        self._watch = StreamWatch(self._stream)
        self._contexts.enter_context(observing(self._watch))
        self._begin_segment()

    def seal(self, result: Any) -> Any:
        self._end_segment("the recording's end", whole=not self._capture.calls)
        self._contexts.close()
        return map_tensors(result, self.pool.view)

    def finish(self, name: str, result: Any) -> Recording:
        capture, self._capture = self._capture, _Capture(breaks=True)
        turn = Turn(capture.turns, capture.loads) if capture.turns is not None and capture.loads else None
        if turn is not None:
            turn.turns.holder = turn.key  # each segment has just been launched
        return Recording(
            name=name,
            nodes=tuple(capture.nodes),
            calls=tuple(capture.calls),
            replay=replayer(capture.calls, result, self._device.index, turn),
            pool=self.pool,
            result=result,
            inlined=tuple(capture.inlined),
        )

    def abort(self) -> str:
        capture, self._capture = self._capture, _Capture(breaks=True)
        try:
            if capture.graph is not None:
                torch.cuda.set_stream(self._stream)
                self._end_failed(capture.graph)
        finally:
            self._contexts.close()
        torch.cuda.synchronize(self._device)
        return capture.place

    def region(self, region: Region, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        capture = self._capture
        if not capture.breaks:
            check_inline(region)
            capture.inlined.append(region.name)
            return region.fn(*args, **kwargs)
        self._end_segment(region.name)
        capture.place = f"node {len(capture.nodes)} (region {region.name})"
        self._watch.enter_node(f"region {region.name}", in_region=True)
        crossing = Crossing(region, args, kwargs, self.pool)
        with suspended():
            results = [region.fn(*args, **kwargs)]
        self._watch.check_joined(region.name)
        node, call, recorded = crossing.bind(results)
        capture.nodes.append(node)
        capture.calls.append(call)
        capture.place = f"node {len(capture.nodes)} (segment after region {region.name})"
        self._watch.enter_node(f"the segment after region {region.name}", in_region=False)
        self._begin_segment()
        return recorded

    def opaque(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return fn(*args, **kwargs)  # what it launches is captured like anything else

    def _begin_segment(self) -> None:
        graph = torch.cuda.CUDAGraph(keep_graph=self._capture.turns is not None)
        for generator in self._capture.generators[1:]:
            graph.register_generator_state(generator)
        self._capture.graph = graph
        # Other threads (NCCL's watchdog, a data loader) may go on calling what a capture forbids.
        graph.capture_begin(pool=self.pool.id, capture_error_mode="thread_local")

    def _end_segment(self, region: str, *, whole: bool = False) -> None:
        capture = self._capture
        self._watch.check_joined(region)
        nodes = self._count_nodes()
        graph = capture.graph
        assert graph is not None
        if nodes:
            graph.capture_end()
        else:
            _end_empty(graph)
        capture.graph = None
        if nodes == 0:
            return  # two regions in a row, or one first or last: nothing to launch
        capture.nodes.append(Segment(nodes, "nodes"))
        capture.calls.append(self._launched(graph, whole=whole))

    def _launched(self, graph: torch.cuda.CUDAGraph, *, whole: bool) -> Launch:
        """The segment's graph, launched: by an executable it borrows, or by its own."""
        capture, turns = self._capture, self._capture.turns
        if turns is None:
            return Launch(graph, capture.generators)
        if whole:  # one executable a recording is few, and large ones take long to update
            graph.instantiate()
            return Launch(graph, capture.generators)
        place, raw = len(capture.calls), int(graph.raw_cuda_graph())
        maker = turns.borrow(place, raw)
        if maker is not None:
            launch = Launch.shared(graph, maker, self._stream)
        else:
            graph.instantiate()
            launch = Launch(graph, capture.generators)
            if not turns.add(place, launch, raw):
                return launch
        assert launch.executable is not None
        capture.loads.append((launch.executable, c_void_p(raw)))
        return launch

    def _end_failed(self, graph: torch.cuda.CUDAGraph) -> None:
        """Ends a capture whose recording failed, whatever state the failure left it in.

        Where the capture itself is spoilt, torch stops half way: its allocators would go on routing to the
        pool, and its random generators would believe in the capture for ever. Given a capture that can be
        ended, it puts all of that right.
        """
        with suppress(RuntimeError):
            _end_empty(graph)
            return
        if begin_capture(self._stream):
            with suppress(RuntimeError):
                _end_empty(graph)


def _end_empty(graph: torch.cuda.CUDAGraph) -> None:
    """Ends a capture that may hold nothing, of which torch would warn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
        graph.capture_end()
