from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from atom.graphs import (
    BucketError,
    NestedRecordingError,
    RecordingError,
    RegionResultError,
    ReplayInputError,
    TokenGraph,
    eager_region,
)


class Block(nn.Module):
    """A segment, a region that makes a tensor, a segment."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 8, device=device), nn.Linear(8, 4, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.b(doubled(self.a(x)))
        return out


@eager_region
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def eager(forward: Any, *inputs: torch.Tensor) -> Any:
    with torch.no_grad():
        return forward(*inputs)


def test_replay_equals_eager_on_new_input(kind: Any) -> None:
    model = Block(kind.device)
    graph = TokenGraph(model, recorder=kind.recorder)
    assert torch.equal(graph.record(kind.randn(4, 8)), eager(model, kind.randn(4, 8)))
    for seed in range(1, 4):
        x = kind.randn(4, 8, seed=seed)
        assert torch.equal(graph.replay(x), eager(model, x))


def test_python_runs_once_and_the_region_at_every_replay(kind: Any) -> None:
    ran = {"segment": 0, "region": 0}

    @eager_region
    def region(x: torch.Tensor) -> torch.Tensor:
        ran["region"] += 1
        return x + 1

    def forward(x: torch.Tensor) -> torch.Tensor:
        ran["segment"] += 1
        return region(x * 2) * 3

    graph = TokenGraph(forward, recorder=kind.recorder)
    x = kind.randn(3, 2)
    graph.record(x)
    for _ in range(5):
        graph.replay(x)
    assert ran == {"segment": 1, "region": 6}


def test_fewer_rows_are_padded_with_zeros_and_only_live_rows_return(kind: Any) -> None:
    seen: list[torch.Tensor] = []

    @eager_region
    def look(x: torch.Tensor) -> None:
        seen.append(x.clone())

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        look(y)
        return y + 1

    graph = TokenGraph(forward, recorder=kind.recorder)
    graph.record(torch.full((8, 2), float("nan"), device=kind.device))
    x = kind.randn(5, 2)
    got = graph.replay(x)
    assert got.shape == (5, 2)
    assert torch.equal(got, x * 2 + 1)
    assert torch.equal(seen[-1][5:], torch.zeros(3, 2, device=kind.device))


def test_the_smallest_bucket_that_holds_the_rows_is_used(kind: Any) -> None:
    model = Block(kind.device)
    graph = TokenGraph(model, recorder=kind.recorder)
    for rows in (8, 4, 2):
        graph.record(kind.randn(rows, 8))
    for rows in range(1, 9):
        x = kind.randn(rows, 8, seed=rows)
        bucket = next(b for b in (2, 4, 8) if b >= rows)
        padded = torch.zeros(bucket, 8, device=kind.device)
        padded[:rows] = x
        assert torch.equal(graph.replay(x), eager(model, padded)[:rows])


def test_more_rows_than_any_bucket_is_an_error_that_lists_them(kind: Any) -> None:
    graph = TokenGraph(Block(kind.device), recorder=kind.recorder)
    graph.record(kind.randn(4, 8))
    graph.record(kind.randn(2, 8))
    with pytest.raises(BucketError, match=r"no decode bucket holds 5 rows; recorded: \[2, 4\]"):
        graph.replay(kind.randn(5, 8))


def test_an_input_at_the_recorded_address_is_not_copied(kind: Any) -> None:
    buffer = kind.randn(4, 8)
    model = Block(kind.device)
    graph = TokenGraph(model, recorder=kind.recorder)
    graph.record(buffer)
    buffer.copy_(kind.randn(4, 8, seed=5))
    before = buffer.clone()
    assert torch.equal(graph.replay(buffer[:4]), eager(model, before))
    assert torch.equal(buffer, before)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda k: (k.randn(4, 7),), r"input 0 is torch.float32 \[4, 7\] where bucket 4 takes .* \[4, 8\]"),
        (lambda k: (k.randn(4, 8).double(),), "input 0 is torch.float64"),
        (lambda k: (k.randn(4, 8), k.randn(4, 8)), "2 inputs where bucket 4 has 1"),
        (lambda k: ("no tensor",), "input 0 must be a tensor"),
        (lambda k: (), "input 0 must be a tensor .* it is missing"),
    ],
)
def test_an_input_the_recording_cannot_take_is_refused(kind: Any, given: Any, message: str) -> None:
    graph = TokenGraph(Block(kind.device), recorder=kind.recorder)
    graph.record(kind.randn(4, 8))
    with pytest.raises(ReplayInputError, match=message):
        graph.replay(*given(kind))


def test_an_input_that_is_no_tensor_must_stay_what_it_was(kind: Any) -> None:
    graph = TokenGraph(lambda x, scale, skip: x * scale, recorder=kind.recorder)
    x = kind.randn(2, 2)
    graph.record(x, 3, None)
    assert torch.equal(graph.replay(x, 3, None), x * 3)
    with pytest.raises(ReplayInputError, match="input 1 is 4, but bucket 2 was recorded with 3"):
        graph.replay(x, 4, None)


def test_an_input_whose_memory_was_exchanged_is_copied(kind: Any) -> None:
    graph = TokenGraph(lambda x: x * 2, recorder=kind.recorder)
    x = kind.randn(3, 3)
    kept = x.detach()
    graph.record(x)
    x.data = kind.randn(3, 3, seed=5)
    assert torch.equal(graph.replay(x), x * 2)
    assert torch.equal(kept, x)


def test_a_strided_input_is_read_in_its_own_order(kind: Any) -> None:
    graph = TokenGraph(lambda x: x + 0, recorder=kind.recorder)
    square = kind.randn(3, 3)
    graph.record(square)
    turned = square.t()
    want = turned.clone()
    assert torch.equal(graph.replay(turned.contiguous()), want)


class TestPhases:
    def test_a_bucket_counts_for_a_phase_only_once_that_phase_asked(self, kind: Any) -> None:
        ran: list[int] = []

        def forward(x: torch.Tensor) -> torch.Tensor:
            ran.append(x.shape[0])
            return x + 1

        graph = TokenGraph(forward, recorder=kind.recorder)
        for rows in (8, 2):
            graph.record(kind.randn(rows, 1), phase="decode")
        assert graph.captured_sizes("decode") == [2, 8]
        assert graph.captured_sizes("prefill") == []
        with pytest.raises(BucketError, match="no prefill bucket"):
            graph.replay(kind.randn(2, 1), phase="prefill")
        x = kind.randn(8, 1, seed=3)
        assert torch.equal(graph.record(x, phase="prefill"), x + 1)
        assert graph.captured_sizes("prefill") == [8]
        assert ran == [8, 2]  # not recorded again
        short = kind.randn(2, 1, seed=4)
        assert torch.equal(graph.replay(short, phase="prefill"), short + 1)

    def test_per_phase_records_each_phase_for_itself(self, kind: Any) -> None:
        work = {"factor": 2.0}
        graph = TokenGraph(lambda x: x * work["factor"], per_phase=True, recorder=kind.recorder)
        x = kind.randn(2, 1)
        graph.record(x, phase="decode")
        work["factor"] = 5.0
        graph.record(x, phase="prefill")
        assert torch.equal(graph.replay(x, phase="decode"), x * 2)
        assert torch.equal(graph.replay(x, phase="prefill"), x * 5)
        assert list(graph.recordings()) == ["token bucket 2 (prefill)", "token bucket 2 (decode)"]


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor | None
    label: str = "pair"


class TestWhatCrosses:
    """Forms of arguments and results, each with a replay on new data."""

    def check(self, kind: Any, forward: Any, rows: int = 4) -> None:
        graph = TokenGraph(forward, recorder=kind.recorder)
        graph.record(kind.randn(rows, 4))
        for seed in (1, 2):
            kind.disturb()
            x = kind.randn(rows, 4, seed=seed)
            want = copy.deepcopy(eager(forward, x.clone()))
            got = graph.replay(x)
            assert type(got) is type(want)
            if isinstance(want, dict):
                assert got.keys() == want.keys()
                got, want = tuple(got.values()), tuple(want.values())
            if isinstance(want, Pair):
                got, want = (got.left, got.right), (want.left, want.right)
            for a, b in zip(*((got, want) if isinstance(want, tuple) else ((got,), (want,))), strict=True):
                assert (a is None) == (b is None)
                if b is not None:
                    assert torch.equal(a, b)

    def test_tuples(self, kind: Any) -> None:
        @eager_region
        def swap(pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            return pair[1] + 1, pair[0] + 2

        def forward(x: torch.Tensor) -> Any:
            a, b = swap((x * 2, x * 3))
            return a * b, b - a

        self.check(kind, forward)

    def test_dicts_given_and_returned_even_when_the_region_empties_them(self, kind: Any) -> None:
        @eager_region
        def take(named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"sum": named.pop("a") + named.pop("b")}

        def forward(x: torch.Tensor) -> Any:
            return {"out": take({"a": x * 2, "b": x * 3})["sum"] * 2}

        self.check(kind, forward)

    def test_lists(self, kind: Any) -> None:
        @eager_region
        def rotate(parts: list[torch.Tensor]) -> list[torch.Tensor]:
            return [parts[-1] * 2, *parts[:-1]]

        self.check(kind, lambda x: torch.cat(rotate([x + 1, x + 2, x + 3]), 1))

    def test_dataclasses_with_none_in_them(self, kind: Any) -> None:
        @eager_region
        def turn(pair: Pair) -> Pair:
            return Pair(pair.left * 2, pair.right, pair.label)

        def forward(x: torch.Tensor) -> Any:
            pair = turn(Pair(x + 1, None))
            return Pair(pair.left - 1, pair.right)

        self.check(kind, forward)

    def test_nothing(self, kind: Any) -> None:
        buffer = torch.zeros(4, 4, device=kind.device)

        @eager_region
        def fill(x: torch.Tensor) -> None:
            buffer.copy_(x)

        def forward(x: torch.Tensor) -> torch.Tensor:
            fill(x * 2)
            return buffer + 1

        self.check(kind, forward)

    def test_an_output_buffer_written_in_place_and_returned(self, kind: Any) -> None:
        @eager_region
        def write(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            return torch.mul(x, 3, out=out)

        self.check(kind, lambda x: write(x + 1, torch.empty_like(x)) * 2)

    def test_a_view_of_an_input_stays_a_view(self, kind: Any) -> None:
        @eager_region
        def part(x: torch.Tensor) -> torch.Tensor:
            return x[:, 1:3]

        def forward(x: torch.Tensor) -> torch.Tensor:
            whole = x * 2
            part(whole).add_(10)
            return whole + 1

        self.check(kind, forward)

    def test_overlapping_results_stay_overlapping(self, kind: Any) -> None:
        @eager_region
        def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            made = x + 1
            return made, made[1:3]

        def forward(x: torch.Tensor) -> torch.Tensor:
            whole, middle = both(x * 2)
            middle.mul_(10)
            return whole + 1

        self.check(kind, forward)

    def test_an_expanded_result(self, kind: Any) -> None:
        @eager_region
        def spread(x: torch.Tensor) -> torch.Tensor:
            return x.sum(1, keepdim=True).expand(4, 4)

        self.check(kind, lambda x: spread(x * 2) + 1)

    def test_a_buffer_the_region_keeps_costs_no_copy(self, kind: Any) -> None:
        kept = torch.zeros(4, 4, device=kind.device)

        @eager_region
        def into_kept(x: torch.Tensor) -> torch.Tensor:
            return kept.copy_(x)

        def forward(x: torch.Tensor) -> torch.Tensor:
            return into_kept(x * 2) + 1

        self.check(kind, forward)
        graph = TokenGraph(forward, recorder=kind.recorder)
        graph.record(kind.randn(4, 4))
        assert graph.describe().recordings[0].bridge_bytes == 0

    def test_a_fresh_result_the_region_also_keeps(self, kind: Any) -> None:
        last: list[torch.Tensor] = []

        @eager_region
        def make(x: torch.Tensor) -> torch.Tensor:
            last[:] = [x * 2]
            return last[0]

        self.check(kind, lambda x: make(x + 1) + 1)

    def test_a_result_with_transposed_strides(self, kind: Any) -> None:
        @eager_region
        def turned(x: torch.Tensor) -> torch.Tensor:
            return (x * 2).t()

        self.check(kind, lambda x: turned(x + 1) @ x)

    def test_an_empty_result(self, kind: Any) -> None:
        @eager_region
        def nothing_left(x: torch.Tensor) -> torch.Tensor:
            return x[:0] * 2

        self.check(kind, lambda x: torch.cat([nothing_left(x * 2), x]))

    def test_regions_first_last_and_in_a_row(self, kind: Any) -> None:
        @eager_region
        def plus(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        self.check(kind, lambda x: plus(plus(plus(x) * 2)))

    def test_methods(self, kind: Any) -> None:
        class Scaled(nn.Module):
            factor = 2

            @eager_region
            def scale(self, x: torch.Tensor, *, plus: int = 0) -> torch.Tensor:
                return x * self.factor + plus

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.scale(x + 1, plus=3) - 1

        self.check(kind, Scaled())


class TestLiveRows:
    def graph(self, kind: Any, live: dict[str, int]) -> TokenGraph:
        @eager_region
        def ragged(x: torch.Tensor) -> torch.Tensor:
            return x[: live["rows"]] * 2 + 0

        return TokenGraph(lambda x: ragged(x + 1) + 1, recorder=kind.recorder)

    def test_a_region_may_return_fewer_rows_and_the_rest_is_zero(self, kind: Any) -> None:
        live = {"rows": 6}
        graph = self.graph(kind, live)
        graph.record(torch.full((6, 3), float("nan"), device=kind.device))
        live["rows"] = 4
        x = kind.randn(6, 3)
        got = graph.replay(x)
        assert torch.equal(got[:4], (x[:4] + 1) * 2 + 1)
        assert torch.equal(got[4:], torch.ones(2, 3, device=kind.device))

    def test_more_rows_than_recorded_are_refused(self, kind: Any) -> None:
        live = {"rows": 3}
        with pytest.raises(RecordingError, match="token bucket 6"):
            # The segment behind adds what no longer fits together.
            TokenGraph(lambda x: self.graph(kind, live).forward(x) + x, recorder=kind.recorder).record(
                kind.randn(6, 3)
            )
        graph = self.graph(kind, live)
        graph.record(kind.randn(6, 3))
        live["rows"] = 5
        with pytest.raises(
            RegionResultError, match=r"ragged returned .* \[5, 3\] where its recording has .* \[3, 3\]"
        ):
            graph.replay(kind.randn(6, 3))


class TestResultsThatChangeTheirKind:
    def record(self, kind: Any, choose: dict[str, Any]) -> TokenGraph:
        @eager_region
        def region(x: torch.Tensor) -> Any:
            return choose["result"](x)

        graph = TokenGraph(lambda x: region(x * 2), recorder=kind.recorder)
        graph.record(kind.randn(4, 4))
        return graph

    @pytest.mark.parametrize(
        ("first", "later", "message"),
        [
            (lambda x: x + 1, lambda x: None, "returned NoneType where its recording has a tensor"),
            (lambda x: x + 1, lambda x: (x + 1).double(), "returned torch.float64"),
            (lambda x: x + 1, lambda x: x.sum(), r"returned torch.float32 \[\]"),
            (lambda x: x, lambda x: x + 1, "returned part of an argument when it was recorded"),
            (lambda x: (x + 1, x + 2), lambda x: (x + 1,), "returned 1 tensors where its recording has 2"),
        ],
    )
    def test_a_result_without_a_place_is_an_error_that_names_the_region(
        self, kind: Any, first: Any, later: Any, message: str
    ) -> None:
        choose = {"result": first}
        graph = self.record(kind, choose)
        choose["result"] = later
        with pytest.raises(RegionResultError, match=message):
            graph.replay(kind.randn(4, 4))
        choose["result"] = first
        x = kind.randn(4, 4, seed=9)
        first_of = graph.replay(x)
        want = first(x * 2)
        assert torch.equal(*(t[0] if isinstance(t, tuple) else t for t in (first_of, want)))

    def test_a_new_tensor_in_place_of_a_kept_buffer_is_copied(self, kind: Any) -> None:
        kept = torch.zeros(4, 4, device=kind.device)
        choose: dict[str, Any] = {"result": lambda x: kept.copy_(x)}
        graph = self.record(kind, choose)
        choose["result"] = lambda x: x + 5
        x = kind.randn(4, 4, seed=2)
        assert torch.equal(graph.replay(x), x * 2 + 5)


class TestInferenceMode:
    def test_recorded_inside_and_replayed_outside(self, kind: Any) -> None:
        model = Block(kind.device)
        graph = TokenGraph(model, recorder=kind.recorder)
        with torch.inference_mode():
            graph.record(kind.randn(4, 8))
        x = kind.randn(4, 8, seed=1)
        assert torch.equal(graph.replay(x), eager(model, x))
        with torch.inference_mode():
            assert torch.equal(graph.replay(x), eager(model, x))

    def test_recorded_outside_and_replayed_inside_or_with_gradients_on(self, kind: Any) -> None:
        model = Block(kind.device)
        graph = TokenGraph(model, recorder=kind.recorder)
        graph.record(kind.randn(4, 8))
        x = kind.randn(4, 8, seed=1)
        with torch.inference_mode():
            assert torch.equal(graph.replay(x.clone()), eager(model, x))
        with torch.enable_grad():
            got = graph.replay(x)
        assert torch.equal(got, eager(model, x))
        assert not got.requires_grad


class TestFailures:
    def test_a_failing_forward_leaves_no_bucket_and_a_usable_pool(self, kind: Any) -> None:
        fail = {"on": True}

        @eager_region
        def region(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        def forward(x: torch.Tensor) -> torch.Tensor:
            y = region(x * 2)
            if fail["on"]:
                raise KeyError("broken layer")
            return y * 3

        graph = TokenGraph(forward, recorder=kind.recorder)
        x = kind.randn(4, 4)
        with pytest.raises(
            RecordingError,
            match=r"token bucket 4 failed in node 2 \(segment after region .*region\): KeyError",
        ) as caught:
            graph.record(x)
        assert isinstance(caught.value.__cause__, KeyError)
        assert graph.captured_sizes() == []
        with pytest.raises(BucketError):
            graph.replay(x)
        fail["on"] = False
        graph.record(x)
        assert torch.equal(graph.replay(x), (x * 2 + 1) * 3)

    def test_a_failing_region_is_named_and_everything_works_afterwards(self, kind: Any) -> None:
        @eager_region
        def broken(x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no plan")

        graph = TokenGraph(lambda x: broken(x * 2), recorder=kind.recorder)
        with pytest.raises(RecordingError, match=r"node 1 \(region .*broken\): ValueError: no plan"):
            graph.record(kind.randn(2, 2))
        other = TokenGraph(Block(kind.device), recorder=kind.recorder)
        other.record(kind.randn(4, 8))
        x = kind.randn(4, 8, seed=1)
        assert torch.equal(other.replay(x), eager(Block(kind.device), x))
        assert torch.rand(3, device=kind.device).shape == (3,)

    def test_reading_a_value_on_the_host_is_refused_and_the_device_survives(self, kind: Any) -> None:
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * 2 if (x.sum() > 0).item() else x

        graph = TokenGraph(forward, recorder=kind.recorder)
        with pytest.raises(RecordingError, match="token bucket 3"):
            graph.record(kind.randn(3, 3))
        assert torch.rand(3, device=kind.device).sum().item() > 0
        good = TokenGraph(lambda x: x * 2, recorder=kind.recorder)
        x = kind.randn(3, 3)
        good.record(x)
        assert torch.equal(good.replay(x), x * 2)

    def test_a_region_that_fails_in_a_replay_can_be_replayed_again(self, kind: Any) -> None:
        fail = {"on": False}

        @eager_region
        def sometimes(x: torch.Tensor) -> torch.Tensor:
            if fail["on"]:
                raise ValueError("this step only")
            return x + 1

        graph = TokenGraph(lambda x: sometimes(x * 2) * 2, recorder=kind.recorder)
        x = kind.randn(2, 2)
        graph.record(x)
        fail["on"] = True
        with pytest.raises(ValueError, match="this step only"):
            graph.replay(x)
        fail["on"] = False
        assert torch.equal(graph.replay(x), (x * 2 + 1) * 2)


class TestNesting:
    def test_a_recording_inside_a_recording_raises(self, kind: Any) -> None:
        inner = TokenGraph(lambda x: x + 1, recorder=kind.recorder)
        outer = TokenGraph(lambda x: inner.record(x) * 2, recorder=kind.recorder)
        with pytest.raises(
            NestedRecordingError, match="token bucket 2 began inside the recording of token bucket 2"
        ):
            outer.record(kind.randn(2, 2))
        x = kind.randn(2, 2)
        inner.record(x)
        assert torch.equal(inner.replay(x), x + 1)

    def test_a_recording_inside_a_region_raises_too(self, kind: Any) -> None:
        inner = TokenGraph(lambda x: x + 1, recorder=kind.recorder)

        @eager_region
        def region(x: torch.Tensor) -> Any:
            return inner.record(x)

        outer = TokenGraph(lambda x: region(x) * 2, recorder=kind.recorder)
        with pytest.raises(NestedRecordingError, match="region"):
            outer.record(kind.randn(2, 2))

    def test_a_replay_inside_a_recording_raises(self, kind: Any) -> None:
        inner = TokenGraph(lambda x: x + 1, recorder=kind.recorder)
        inner.record(kind.randn(2, 2))
        outer = TokenGraph(lambda x: inner.replay(x) * 2, recorder=kind.recorder)
        with pytest.raises(NestedRecordingError, match="share memory"):
            outer.record(kind.randn(2, 2))

    def test_a_region_inside_a_region_is_a_plain_call(self, kind: Any) -> None:
        @eager_region
        def inner(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        @eager_region
        def outer(x: torch.Tensor) -> torch.Tensor:
            return inner(x) * 2

        graph = TokenGraph(lambda x: outer(x * 3), recorder=kind.recorder)
        x = kind.randn(2, 2)
        graph.record(x)
        assert len(graph.describe().recordings[0].regions) == 1
        assert torch.equal(graph.replay(x), (x * 3 + 1) * 2)
