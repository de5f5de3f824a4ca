"""Launching a recording's device graphs with as little host time as the driver allows.

torch's own replay guards the device and visits every random generator before it launches; on a recording of
33 segments that was 193 of 508 microseconds on an H200, where the driver's call alone took 108. So a segment
that draws no random numbers is launched by the driver's call, and torch's replay remains for one that does
and for whatever the driver call refuses.
"""

from __future__ import annotations

from ctypes import c_void_p
from typing import TYPE_CHECKING, Any

import torch

from atom.graphs.driver import graph_launch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atom.graphs.turns import Turn


class Launch:
    """One segment's device graph."""

    __slots__ = ("_graph", "_maker", "executable", "torch_launch")

    def __init__(self, graph: torch.cuda.CUDAGraph, generators: Sequence[torch.Generator]) -> None:
        """Launches the graph once, and notes by that whether it draws from one of `generators`."""
        self._graph, self._maker = graph, self
        # Past torch's Python wrapper, whose hooks add to every launch.
        self.torch_launch: Callable[[], Any] = super(torch.cuda.CUDAGraph, graph).replay
        before = [g.get_offset() for g in generators]
        self.torch_launch()
        draws = before != [g.get_offset() for g in generators]
        executable = getattr(super(torch.cuda.CUDAGraph, graph), "raw_cuda_graph_exec", None)
        direct = executable is not None and not draws and graph_launch() is not None
        self.executable = c_void_p(executable()) if direct and executable is not None else None

    @classmethod
    def shared(cls, graph: torch.cuda.CUDAGraph, maker: Launch, stream: torch.cuda.Stream) -> Launch:
        """Launches once the executable of `maker`, which holds this graph now; torch would make another."""
        made = cls.__new__(cls)
        made._graph, made._maker, made.executable = graph, maker, maker.executable
        made.torch_launch = graph.replay
        launch = graph_launch()
        executable = made.executable
        if launch is None or executable is None or launch(executable, c_void_p(stream.cuda_stream)):
            made.torch_launch()
        return made

    def __call__(self) -> None:
        self.torch_launch()


def replayer(
    calls: Sequence[Callable[[], Any]], result: Any, device: int, turn: Turn | None = None
) -> Callable[[], Any]:
    """A function that runs `calls` in order, launches among them, on the current stream of `device`.

    With a `turn` it is taken before, unless the replay before was this recording's too.
    """
    launch = graph_launch()
    if launch is None:
        return _through_torch(calls, result, device)
    if turn is None and len(calls) == 1 and isinstance(calls[0], Launch) and calls[0].executable is not None:
        return _one(launch, calls[0], result, device)
    return _many(launch, _steps(calls), calls, result, device, turn)


def _one(launch: Callable[..., int], only: Launch, result: Any, device: int) -> Callable[[], Any]:
    executable, torch_launch = only.executable, only.torch_launch
    stream_of, current = torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice

    def replay() -> Any:
        if current() != device or launch(executable, c_void_p(stream_of(device))):
            torch_launch()
        return result

    return replay


Step = tuple["c_void_p | None", "Callable[[], Any]", "Callable[[], Any] | None"]


def _steps(calls: Sequence[Callable[[], Any]]) -> tuple[Step, ...]:
    """Launches paired with the call behind them: (executable, torch's launch, region)."""
    steps: list[Step] = []
    for call in calls:
        if isinstance(call, Launch) and call.executable is not None:
            steps.append((call.executable, call.torch_launch, None))
        elif steps and steps[-1][2] is None:
            steps[-1] = (*steps[-1][:2], call)
        else:
            steps.append((None, call, call))
    return tuple(steps)


def _many(
    launch: Callable[..., int],
    steps: tuple[Step, ...],
    calls: Sequence[Callable[[], Any]],
    result: Any,
    device: int,
    turn: Turn | None,
) -> Callable[[], Any]:
    turns, key = (None, None) if turn is None else (turn.turns, turn.key)
    stream_of, current = torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice
    grad_enabled, set_grad = torch.is_grad_enabled, torch._C._set_grad_enabled
    elsewhere = _through_torch(calls, result, device)

    def replay() -> Any:
        if turn is not None and turns is not None and turns.holder is not key:
            turn.take()
        if current() != device:
            return elsewhere()
        stream = c_void_p(stream_of(device))
        grad = grad_enabled()
        if grad:
            # A region must not extend an autograd graph through buffers that every replay overwrites.
            set_grad(False)
        try:
            for executable, torch_launch, region in steps:
                if executable is not None and launch(executable, stream):
                    torch_launch()
                if region is not None:
                    region()
        finally:
            if grad:
                set_grad(True)
        return result

    return replay


def _through_torch(calls: Sequence[Callable[[], Any]], result: Any, device: int) -> Callable[[], Any]:
    """The same by torch's own launches, with the recording's device made current."""

    def replay() -> Any:
        with torch.cuda.device(device), torch.no_grad():
            for call in calls:
                call()
        return result

    return replay
