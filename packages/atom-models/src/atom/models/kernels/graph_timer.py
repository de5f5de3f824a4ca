"""Device time of launches, without the gaps that launching one by one leaves between them."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["time_in_graph"]


def time_in_graph(run: Callable[[], object], *, repeats: int = 20) -> float:
    """Median milliseconds of one replay of a graph that holds everything `run` launches.

    `run` is called once before it is captured, so what it compiles or allocates lazily is out of the way.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    graph.replay()  # uploads the graph
    marks = [_event() for _ in range(2 * repeats)]
    for start, stop in zip(marks[::2], marks[1::2], strict=True):
        start.record()
        graph.replay()
        stop.record()
    torch.cuda.synchronize()
    return statistics.median(
        float(start.elapsed_time(stop)) for start, stop in zip(marks[::2], marks[1::2], strict=True)
    )


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
