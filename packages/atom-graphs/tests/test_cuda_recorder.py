"""What only a device can show."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from atom.graphs import CUDARecorder, RecordingError, ReqGraph, TokenGraph, eager_region, register_generator
from atom.graphs.launch import Launch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@eager_region
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def forward(x: torch.Tensor) -> torch.Tensor:
    return doubled(x + 1) - 1


def recorded(rows: int = 64) -> TokenGraph:
    graph = TokenGraph(forward)
    graph.record(torch.randn(rows, 8, device="cuda"))
    return graph


def launches(graph: TokenGraph, rows: int) -> list[Launch]:
    return [call for call in graph.bucket(rows).recording.calls if isinstance(call, Launch)]


class TestRandomNumbers:
    @pytest.mark.parametrize("own", [False, True])
    def test_every_replay_draws_anew_and_a_seed_repeats_the_row(self, own: bool) -> None:
        torch.cuda.init()
        generator = torch.Generator("cuda") if own else torch.cuda.default_generators[0]
        if own:
            register_generator(generator)

        def draw(x: torch.Tensor) -> torch.Tensor:
            return doubled(x + torch.rand(x.shape, device="cuda", generator=generator))

        graph = TokenGraph(draw)
        x = torch.zeros(64, 8, device="cuda")
        graph.record(x)
        rows = []
        for _ in range(2):
            generator.manual_seed(5)
            rows.append([graph.replay(x).clone() for _ in range(3)])
        assert all(torch.equal(a, b) for a, b in zip(*rows, strict=True))
        assert not torch.equal(rows[0][0], rows[0][1])
        drawing, following = launches(graph, 64)[0], launches(graph, 64)[1:]
        assert drawing.executable is None
        assert all(launch.executable is not None for launch in following)

    def test_the_generator_still_works_outside_after_a_failed_recording(self) -> None:
        def broken(x: torch.Tensor) -> torch.Tensor:
            y = torch.rand_like(x)
            return y * y.sum().item()

        with pytest.raises(RecordingError):
            TokenGraph(broken).record(torch.randn(4, 4, device="cuda"))
        assert torch.rand(4, device="cuda").sum().item() > 0
        assert torch.equal(
            recorded(4).replay(torch.zeros(4, 8, device="cuda")), torch.ones(4, 8, device="cuda")
        )


class TestWhereAReplayRuns:
    def test_on_the_current_stream(self) -> None:
        graph, side = recorded(), torch.cuda.Stream()
        x = torch.randn(64, 8, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            x.add_(1)
            got = graph.replay(x)
            want = (x + 1) * 2 - 1
        side.synchronize()
        assert torch.equal(got, want)

    def test_in_a_thread_that_never_used_the_device(self) -> None:
        graph, whole = recorded(), ReqGraph()
        x = torch.randn(64, 8, device="cuda")
        whole.record(lambda: x * 3, bucket=(64, 0))
        torch.cuda.synchronize()
        got: dict[str, Any] = {}

        def run() -> None:
            got["request"] = whole.replay((64, 0)).clone()
            got["token"] = graph.replay(x).clone()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        torch.cuda.synchronize()
        assert torch.equal(got["request"], x * 3)
        assert torch.equal(got["token"], (x + 1) * 2 - 1)


def test_two_recorders_of_a_device_share_pool_and_stream() -> None:
    x = torch.randn(4096, 64, device="cuda")
    first = TokenGraph(forward, recorder=CUDARecorder())
    first.record(x)
    held = CUDARecorder().pool.nbytes()
    second = TokenGraph(forward, recorder=CUDARecorder())
    second.record(x.clone())
    assert CUDARecorder().pool.nbytes() == held
    assert torch.equal(first.replay(x).clone(), second.replay(x))


def test_dropped_recordings_leave_the_pool_usable() -> None:
    for _ in range(5):
        graph = recorded(32)
        x = torch.randn(32, 8, device="cuda")
        assert torch.equal(graph.replay(x), (x + 1) * 2 - 1)
        del graph
        torch.cuda.empty_cache()


def test_memory_in_use_elsewhere_is_not_touched_by_recordings_and_replays() -> None:
    graph = recorded(512)
    elsewhere = [torch.full((n,), 3.0, device="cuda") for n in (1000, 100_000, 1_000_000)]
    for rows in (256, 64, 1):
        graph.record(torch.randn(rows, 8, device="cuda"))
    for rows in (512, 64, 1, 256, 3):
        graph.replay(torch.randn(rows, 8, device="cuda"))
    assert all((t == 3.0).all() for t in elsewhere)
