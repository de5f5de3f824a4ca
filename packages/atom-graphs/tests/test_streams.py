"""Forks onto side streams: joined before a break, or refused by name; never right by luck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from atom.graphs import RecordingError, StreamForkError, TokenGraph, eager_region
from atom.graphs.streams import StreamWatch

gpu = pytest.mark.gpu
needs_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@dataclass(frozen=True)
class FakeStream:
    stream_id: int
    device_index: int = 0

    def __repr__(self) -> str:
        return f"<side {self.stream_id}>"


MAIN, SIDE, OTHER = FakeStream(0), FakeStream(1), FakeStream(2)


@dataclass(eq=False)
class FakeEvent:
    name: str = "event"


@pytest.fixture
def watch() -> StreamWatch:
    return StreamWatch(MAIN)


def join(watch: StreamWatch, source: FakeStream, target: FakeStream) -> None:
    event = FakeEvent()
    watch.recorded(event, source)
    watch.waited(event, target)


class TestWatch:
    def test_nothing_is_open_at_first(self, watch: StreamWatch) -> None:
        assert watch.unjoined() == []
        watch.check_joined("region")

    def test_a_side_stream_is_open_from_its_first_use_until_the_main_stream_waits(
        self, watch: StreamWatch
    ) -> None:
        join(watch, MAIN, SIDE)
        watch.used(SIDE)
        assert watch.unjoined() == ["stream <side 1>"]
        join(watch, SIDE, MAIN)
        assert watch.unjoined() == []

    def test_the_error_names_stream_place_and_region(self, watch: StreamWatch) -> None:
        watch.enter_node("region prefetch", in_region=True)
        watch.used(SIDE)
        with pytest.raises(
            StreamForkError,
            match=r"work left on stream <side 1> in region prefetch .* break at region attention",
        ):
            watch.check_joined("attention")

    def test_waiting_for_an_older_event_does_not_join_newer_work(self, watch: StreamWatch) -> None:
        watch.used(SIDE)
        event = FakeEvent()
        watch.recorded(event, SIDE)
        watch.used(SIDE)
        watch.waited(event, MAIN)
        assert watch.unjoined() == ["stream <side 1>"]

    def test_a_join_through_a_third_stream_counts(self, watch: StreamWatch) -> None:
        watch.used(SIDE)
        join(watch, SIDE, OTHER)
        assert set(watch.unjoined()) == {"stream <side 1>", "stream <side 2>"}
        join(watch, OTHER, MAIN)
        assert watch.unjoined() == []

    @pytest.mark.parametrize("what", ["stream", "event", "device"])
    def test_a_host_that_waits_joins(self, watch: StreamWatch, what: str) -> None:
        event = FakeEvent()
        watch.used(SIDE)
        watch.recorded(event, SIDE)
        watch.synchronized({"stream": SIDE, "event": event, "device": None}[what])
        assert watch.unjoined() == []

    def test_an_event_of_a_segment_is_worthless_elsewhere(self, watch: StreamWatch) -> None:
        event = FakeEvent()
        watch.recorded(event, MAIN)
        watch.enter_node("region late", in_region=True)
        with pytest.raises(
            StreamForkError, match=r"recorded on stream <side 0> in the first segment .* region late"
        ):
            watch.waited(event, SIDE)

    def test_between_regions_events_are_real(self, watch: StreamWatch) -> None:
        event = FakeEvent()
        watch.enter_node("region one", in_region=True)
        watch.recorded(event, MAIN)
        watch.enter_node("the segment after region one", in_region=False)
        watch.enter_node("region two", in_region=True)
        watch.waited(event, SIDE)
        join(watch, SIDE, MAIN)
        assert watch.unjoined() == []


@gpu
@needs_device
class TestOnTheDevice:
    """The three forms of a fork across a break, slow on purpose; afterwards everything still works."""

    @pytest.fixture
    def side(self) -> Any:
        return torch.cuda.Stream()

    def still_works(self) -> None:
        x = torch.randn(64, 64, device="cuda")
        graph = TokenGraph(lambda x: doubled(x @ x) + 1)
        graph.record(x)
        y = torch.randn(64, 64, device="cuda")
        want = (y @ y) * 2 + 1
        assert torch.equal(graph.replay(y), want)
        assert torch.rand(8, device="cuda").sum().item() > 0
        torch.cuda.synchronize()

    def test_a_region_that_returns_with_work_in_flight_is_refused(self, side: Any) -> None:
        buffer = torch.zeros(1024, 8, device="cuda")

        @eager_region
        def prefetch(x: torch.Tensor) -> None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(10_000_000)
                buffer.copy_(x)

        def forward(x: torch.Tensor) -> torch.Tensor:
            prefetch(x * 2)
            return buffer + 1

        graph = TokenGraph(forward)
        with pytest.raises(StreamForkError, match=r"torch\.cuda\.Stream .* region .*prefetch"):
            graph.record(torch.randn(1024, 8, device="cuda"))
        self.still_works()

    def test_a_region_that_joins_what_it_started_is_right_whatever_the_timing(self, side: Any) -> None:
        buffer = torch.zeros(1024, 8, device="cuda")

        @eager_region
        def fetch(x: torch.Tensor) -> None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(5_000_000)
                buffer.copy_(x)
            torch.cuda.current_stream().wait_stream(side)

        def forward(x: torch.Tensor) -> torch.Tensor:
            fetch(x * 2)
            return buffer + 1

        graph = TokenGraph(forward)
        graph.record(torch.randn(1024, 8, device="cuda"))
        for _ in range(20):
            x = torch.randn(1024, 8, device="cuda")
            assert torch.equal(graph.replay(x), x * 2 + 1)

    def test_a_fork_in_a_segment_joined_behind_the_break_is_refused(self, side: Any) -> None:
        def forward(x: torch.Tensor) -> torch.Tensor:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x * 2
            z = doubled(x)
            torch.cuda.current_stream().wait_stream(side)
            return y + z

        graph = TokenGraph(forward)
        with pytest.raises(StreamForkError, match=r"torch\.cuda\.Stream .* first segment .* region doubled"):
            graph.record(torch.randn(64, 8, device="cuda"))
        self.still_works()

    def test_a_fork_joined_within_its_segment_is_recorded(self, side: Any) -> None:
        def forward(x: torch.Tensor) -> torch.Tensor:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(1_000_000)
                y = x * 2
            torch.cuda.current_stream().wait_stream(side)
            return doubled(y + 1)

        graph = TokenGraph(forward)
        graph.record(torch.randn(64, 8, device="cuda"))
        for _ in range(20):
            x = torch.randn(64, 8, device="cuda")
            assert torch.equal(graph.replay(x), (x * 2 + 1) * 2)

    def test_an_event_of_a_segment_waited_for_in_a_region_is_refused(self, side: Any) -> None:
        event = torch.cuda.Event()

        @eager_region
        def late(x: torch.Tensor) -> torch.Tensor:
            side.wait_event(event)
            with torch.cuda.stream(side):
                y = x * 2
            torch.cuda.current_stream().wait_stream(side)
            return y

        def forward(x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            event.record()
            return late(y) + 1

        graph = TokenGraph(forward)
        with pytest.raises(StreamForkError, match=r"torch\.cuda\.Stream .* region .*late"):
            graph.record(torch.randn(64, 8, device="cuda"))
        self.still_works()

    def test_a_fork_nobody_joins_at_the_end_is_refused(self, side: Any) -> None:
        def forward(x: torch.Tensor) -> torch.Tensor:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                return x * 2

        with pytest.raises(StreamForkError, match="the recording's end"):
            TokenGraph(forward).record(torch.randn(64, 8, device="cuda"))
        self.still_works()

    def test_synchronising_inside_a_segment_fails_and_leaves_the_device_usable(self) -> None:
        def forward(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            torch.cuda.synchronize()
            return y

        with pytest.raises(RecordingError, match="token bucket 64"):
            TokenGraph(forward).record(torch.randn(64, 8, device="cuda"))
        self.still_works()


@eager_region
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2
