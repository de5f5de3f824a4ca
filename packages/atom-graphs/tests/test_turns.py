"""Executables shared by a ladder's buckets: whose graphs they hold, and what may not share."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from ctypes import c_void_p
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom.graphs import RecordingError, TokenGraph, eager_region, turns
from atom.graphs.launch import Launch, replayer
from atom.graphs.turns import VARIANTS, Turn, Turns

ADD, RAND = 7, 8


class FakeDriver:
    """Executables by number, and which graph each holds; graphs by number, and their kernels."""

    def __init__(self) -> None:
        self.holds: dict[int | None, int | None] = {}
        self.kernels: dict[int, frozenset[int] | None] = {}
        self.refused: set[int | None] = set()

    def update(self, executable: c_void_p, graph: c_void_p) -> int:
        if graph.value in self.refused:
            return 910
        self.holds[executable.value] = graph.value
        return 0

    def segment(self, executable: int | None) -> Any:
        return SimpleNamespace(executable=None if executable is None else c_void_p(executable))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(turns, "graph_update", lambda: fake.update)
    monkeypatch.setattr(turns, "kernel_functions", lambda graph: fake.kernels.get(graph, frozenset({ADD})))
    return fake


class TestBorrowing:
    def test_a_later_segment_borrows_what_an_earlier_made_at_its_place(self, driver: FakeDriver) -> None:
        shared, made = Turns(), driver.segment(1)
        assert shared.borrow(0, 50) is None
        assert shared.add(0, made, 50)
        assert shared.borrow(1, 51) is None
        assert shared.borrow(0, 52) is made
        assert driver.holds == {1: 52}

    def test_what_the_driver_refuses_is_lent_beside_what_there_was(self, driver: FakeDriver) -> None:
        shared, first, second = Turns(), driver.segment(1), driver.segment(2)
        shared.add(0, first, 50)
        driver.refused = {51}
        shared.holder = "somebody"
        assert shared.borrow(0, 51) is None
        assert shared.holder is None
        assert shared.add(0, second, 51)
        driver.refused = set()
        assert shared.borrow(0, 52) is first

    def test_a_segment_that_draws_is_not_lent(self, driver: FakeDriver) -> None:
        shared = Turns()
        assert not shared.add(0, driver.segment(None), 50)
        assert shared.borrow(0, 51) is None

    @pytest.mark.parametrize("kernels", [frozenset({RAND}), frozenset({ADD, RAND}), None])
    def test_a_kernel_not_seen_before_may_draw_and_does_not_borrow(
        self, driver: FakeDriver, kernels: frozenset[int] | None
    ) -> None:
        shared = Turns()
        shared.add(0, driver.segment(1), 50)
        driver.kernels[51] = kernels
        assert shared.borrow(0, 51) is None
        assert driver.holds == {}

    def test_a_place_has_so_many_executables_and_no_more(self, driver: FakeDriver) -> None:
        shared = Turns()
        lent = [shared.add(0, driver.segment(at), 50 + at) for at in range(VARIANTS + 2)]
        assert lent == [True] * VARIANTS + [False] * 2

    def test_one_device_alone_is_served(self, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
        shared, device = Turns(), torch.device("cuda", 0)
        assert shared.on(device) is shared
        assert shared.on(torch.device("cuda", 1)) is None
        monkeypatch.setattr(turns, "graph_update", lambda: None)
        assert shared.on(device) is None


class TestTaking:
    def test_a_replay_updates_only_after_another_recordings(
        self, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log: list[Any] = []
        monkeypatch.setattr(
            "atom.graphs.launch.graph_launch", lambda: lambda e, s: log.append(driver.holds[e.value])
        )
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 70, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
        shared = Turns()

        def recording(graph: int) -> Any:
            call = Launch.__new__(Launch)
            call.executable, call.torch_launch = c_void_p(1), lambda: None
            return replayer([call], graph, 0, Turn(shared, [(c_void_p(1), c_void_p(graph))]))

        large, small = recording(50), recording(51)
        updates: list[Any] = []
        counted = driver.update
        monkeypatch.setattr(
            turns, "graph_update", lambda: lambda e, g: (updates.append(g.value), counted(e, g))[1]
        )
        assert [r() for r in (large, large, small, small, large)] == [50, 50, 51, 51, 50]
        assert log == [50, 50, 51, 51, 50]
        assert updates == [50, 51, 50]

    def test_a_refusal_is_an_error_and_nobody_holds_the_executables(
        self, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Device:
            def __init__(self, index: Any) -> None: ...

            def __enter__(self) -> None: ...

            def __exit__(self, *_: object) -> None: ...

        monkeypatch.setattr(torch.cuda, "device", Device)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(query=lambda: True))
        shared = Turns()
        turn = Turn(shared, [(c_void_p(1), c_void_p(50))])
        turn.take()
        assert shared.holder is turn.key
        driver.refused = {50}
        with pytest.raises(RecordingError, match="record it again"):
            turn.take()
        assert shared.holder is None


@eager_region
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def launches(graph: TokenGraph, rows: int) -> list[Launch]:
    return [call for call in graph.bucket(rows).recording.calls if isinstance(call, Launch)]


def executables(graph: TokenGraph, rows: int) -> list[int | None]:
    return [None if c.executable is None else c.executable.value for c in launches(graph, rows)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnTheDevice:
    def ladder(self, forward: Any, *sizes: int) -> TokenGraph:
        graph = TokenGraph(forward)
        for rows in sizes:
            x = torch.randn(rows, 8, device="cuda")
            forward(x)
            torch.cuda.synchronize()
            graph.record(x)
        return graph

    def test_buckets_share_and_each_replays_its_own_rows(self) -> None:
        def forward(x: torch.Tensor) -> torch.Tensor:
            return doubled(doubled(x + 1) * 3) - 1

        sizes = (64, 32, 8, 1)
        graph = self.ladder(forward, *sizes)
        assert all(executables(graph, rows) == executables(graph, 64) for rows in sizes)
        order = random.Random(0)
        for _ in range(300):
            x = torch.randn(order.choice(sizes), 8, device="cuda")
            assert torch.equal(graph.replay(x), forward(x))

    def test_a_bucket_with_other_work_has_its_own(self) -> None:
        def forward(x: torch.Tensor) -> torch.Tensor:
            y = x + 1 if x.shape[0] > 8 else (x + 1) * 2 + 3
            return doubled(y) - 1

        graph = self.ladder(forward, 64, 32, 8, 4)
        assert executables(graph, 64)[0] == executables(graph, 32)[0]
        assert executables(graph, 8)[0] == executables(graph, 4)[0] != executables(graph, 64)[0]
        for rows in (64, 8, 32, 4, 64, 4, 8):
            x = torch.randn(rows, 8, device="cuda")
            assert torch.equal(graph.replay(x), forward(x))

    def test_a_bucket_that_draws_where_another_does_not_draws_anew_at_each_replay(self) -> None:
        def forward(x: torch.Tensor) -> torch.Tensor:
            y = torch.empty_like(x)
            y = y.fill_(0.5) if x.shape[0] > 8 else y.uniform_()
            return doubled(y)

        graph = self.ladder(forward, 64, 32, 8)
        assert launches(graph, 8)[0].executable is None
        x = torch.randn(8, 8, device="cuda")
        first = graph.replay(x).clone()
        assert not torch.equal(graph.replay(x), first)

    def test_a_bucket_changes_in_a_thread_that_never_used_the_device(self) -> None:
        graph = self.ladder(lambda x: doubled(x + 1) - 1, 64, 8)
        x = torch.randn(64, 8, device="cuda")
        torch.cuda.synchronize()
        got: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: got.append(graph.replay(x).clone()))
        thread.start()
        thread.join()
        torch.cuda.synchronize()
        assert torch.equal(got[0], (x + 1) * 2 - 1)

    def test_a_failed_recording_leaves_the_others_right(self) -> None:
        def forward(x: torch.Tensor) -> torch.Tensor:
            y = doubled(x + 1)
            return y - 1 if x.shape[0] != 8 else y * y.sum().item()

        graph = self.ladder(forward, 64, 32)
        with pytest.raises(RecordingError):
            graph.record(torch.randn(8, 8, device="cuda"))
        for rows in (64, 32, 64):
            x = torch.randn(rows, 8, device="cuda")
            assert torch.equal(graph.replay(x), forward(x))

    def test_dropped_recordings_go_without_a_collector(self) -> None:
        gc.collect()
        gc.disable()
        try:
            graph = self.ladder(lambda x: doubled(x + 1) - 1, 64, 8)
            gone = weakref.ref(launches(graph, 8)[0]._graph)
            del graph
            assert gone() is None
        finally:
            gc.enable()
