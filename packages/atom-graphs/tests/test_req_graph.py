from __future__ import annotations

from typing import Any

import pytest
import torch

from atom.graphs import (
    AttentionMetaData,
    BucketError,
    Context,
    DraftGraph,
    RecordingError,
    RegionRefusedError,
    ReqGraph,
    TokenGraph,
    eager_region,
    request_bucket,
)
from atom.graphs.forward_context import forward_context


@eager_region(bucket_fixed=True)
def masked(x: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """Every launch follows from the bucket; which rows count is read on the device."""
    rows = torch.arange(x.shape[0], device=x.device)
    return torch.where((rows < live)[:, None], x * 2, 0.0)


@eager_region
def planned(x: torch.Tensor) -> torch.Tensor:
    return x[: x.shape[0] // 2] * 2


class Buffers:
    """What a runner keeps: inputs and outputs as long as its largest bucket."""

    def __init__(self, kind: Any, rows: int = 8) -> None:
        self.kind = kind
        self.x = kind.randn(rows, 3)
        self.live = torch.full((), rows, device=kind.device)
        self.out = torch.zeros(rows, 3, device=kind.device)

    def forward(self, rows: int) -> Any:
        def run() -> torch.Tensor:
            out = self.out[:rows]
            return out.copy_(masked(self.x[:rows] + 1, self.live) - 1)

        return run


@pytest.mark.parametrize(("bs", "q", "key"), [(8, 1, (8, 0)), (8, 3, (8, 2)), (1, 1, (1, 0))])
def test_the_bucket_counts_drafts_and_not_the_token_each_sequence_decodes(
    bs: int, q: int, key: tuple[int, int]
) -> None:
    assert request_bucket(bs, q) == key


def test_a_bucket_fixed_region_is_held_inline_and_reads_live_tensors(kind: Any) -> None:
    buffers = Buffers(kind)
    graph = ReqGraph(recorder=kind.recorder)
    for rows in (8, 4):
        graph.record(buffers.forward(rows), bucket=(rows, 0))
    assert graph.buckets == [(4, 0), (8, 0)]
    assert graph.captured_sizes() == [4, 8]
    assert graph.captured_sizes(draft_num=1) == []
    for rows, live in ((8, 5), (4, 1), (8, 8)):
        buffers.x.copy_(kind.randn(8, 3, seed=live))
        buffers.live.fill_(live)
        want = buffers.forward(rows)().clone()
        buffers.out.fill_(float("nan"))
        kind.disturb()
        got = graph.replay((rows, 0))
        assert torch.equal(got, want)
        assert torch.equal(buffers.out[:rows], want)
    report = graph.describe().recordings
    assert [(r.segments, r.regions, r.inlined) for r in report] == [(1, (), ("masked",))] * 2


def test_any_other_region_makes_the_recording_refuse_and_names_the_way_out(kind: Any) -> None:
    graph = ReqGraph(recorder=kind.recorder)
    x = kind.randn(4, 3)
    with pytest.raises(
        RegionRefusedError, match=r"request bucket \(4, 0\) failed .*region planned .*TR_HYBRID"
    ):
        graph.record(lambda: planned(x * 2), bucket=(4, 0))
    assert graph.buckets == []
    graph.record(lambda: x * 2, bucket=(4, 0))
    assert torch.equal(graph.replay((4, 0)), x * 2)


def test_a_missing_bucket_lists_those_there_are(kind: Any) -> None:
    graph = ReqGraph(recorder=kind.recorder)
    with pytest.raises(BucketError, match=r"no request bucket \(2, 1\); recorded: none"):
        graph.replay((2, 1))
    x = kind.randn(2, 2)
    graph.record(lambda: x + 1, bucket=(2, 0))
    with pytest.raises(BucketError, match=r"no request bucket \(2, 1\); recorded: \(2, 0\)"):
        graph.replay((2, 1))


def test_the_bucket_is_the_forward_contexts_unless_given(kind: Any) -> None:
    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=kind.device)

    metadata = AttentionMetaData(ints(0, 3, 6), ints(3, 3), ints(1, 2)[:, None], ints(0) * 6, 3, 3)
    x = kind.randn(6, 2)
    context = Context(positions=torch.arange(6, device=kind.device), running_bs=2, running_tokens=6)
    graph = ReqGraph(recorder=kind.recorder)
    with forward_context(metadata, None, context):
        graph.record(lambda: x * 2)
    assert graph.buckets == [(2, 2)]
    with pytest.raises(RecordingError, match="no forward context to take the request bucket from"):
        graph.record(lambda: x * 2)


def test_recorded_beside_a_token_graph_of_the_same_rows_both_serve(kind: Any) -> None:
    buffers = Buffers(kind)

    def model(x: torch.Tensor) -> torch.Tensor:
        return masked(x + 1, buffers.live) - 1

    tokens, requests = TokenGraph(model, recorder=kind.recorder), ReqGraph(recorder=kind.recorder)
    for rows in (8, 2):
        tokens.record(buffers.x[:rows])
    assert tokens.bucket_fixed
    for rows in (8, 2):
        requests.record(buffers.forward(rows), bucket=(rows, 0))
    assert tokens.captured_sizes() == [2, 8]
    for seed in range(6):
        rows = (8, 2)[seed % 2]
        buffers.x.copy_(kind.randn(8, 3, seed=seed))
        want = buffers.forward(rows)().clone()
        assert torch.equal(tokens.replay(buffers.x[:rows]), want)
        assert torch.equal(requests.replay((rows, 0)), want)


def test_one_host_planned_region_is_enough_for_no_request_graph_beside(kind: Any) -> None:
    live = torch.tensor(2, device=kind.device)
    graph = TokenGraph(lambda x: planned(masked(x, live)), recorder=kind.recorder)
    graph.record(kind.randn(4, 3))
    assert not graph.bucket_fixed


class TestDraftGraph:
    def test_passes_are_recorded_by_bucket_and_number_and_feed_one_another(self, kind: Any) -> None:
        hidden, tokens = kind.randn(4, 3), torch.zeros(2, 4, 3, device=kind.device)

        def draft(step: int) -> Any:
            def run() -> torch.Tensor:
                source = hidden if step == 0 else tokens[step - 1]
                return tokens[step].copy_(planned_rows(source) + step)

            return run

        graph = DraftGraph(breaks=True, recorder=kind.recorder)
        for step in (0, 1):
            graph.record(draft(step), bucket=(4, 0), draft_pass=step)
        assert graph.passes == [((4, 0), 0), ((4, 0), 1)]
        hidden.copy_(kind.randn(4, 3, seed=5))
        for step in (0, 1):
            graph.replay((4, 0), step)
        assert torch.equal(tokens[1], (hidden * 2) * 2 + 1)
        assert graph.verify((4, 0), 1).equal

    def test_without_breaks_a_host_planned_region_is_refused(self, kind: Any) -> None:
        graph = DraftGraph(breaks=False, recorder=kind.recorder)
        x = kind.randn(4, 3)
        with pytest.raises(RegionRefusedError, match=r"draft pass \(\(4, 0\), 0\)"):
            graph.record(lambda: planned(x), bucket=(4, 0))

    def test_a_missing_pass_lists_those_there_are(self, kind: Any) -> None:
        graph = DraftGraph(breaks=False, recorder=kind.recorder)
        x = kind.randn(2, 2)
        graph.record(lambda: x + 1, bucket=(2, 0))
        with pytest.raises(BucketError, match=r"no draft pass \(\(2, 0\), 3\); recorded: \(\(2, 0\), 0\)"):
            graph.replay((2, 0), 3)


@eager_region
def planned_rows(x: torch.Tensor) -> torch.Tensor:
    return x * 2
