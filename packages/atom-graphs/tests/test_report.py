from __future__ import annotations

import json
import random
from typing import Any

import torch

from atom.graphs import ReqGraph, TokenGraph, eager_region


@eager_region
def made(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@eager_region
def written(x: torch.Tensor) -> None:
    x.add_(1)


def forward(x: torch.Tensor) -> torch.Tensor:
    y = made(x + 1)
    written(y)
    return y * 2 + 1


def recorded(kind: Any) -> TokenGraph:
    graph = TokenGraph(forward, recorder=kind.recorder)
    for rows in (8, 2):
        graph.record(kind.randn(rows, 4))
    return graph


def test_describe_counts_segments_regions_work_and_bridges(kind: Any) -> None:
    report = recorded(kind).describe()
    assert [r.name for r in report.recordings] == ["token bucket 2", "token bucket 8"]
    large = report.recordings[1]
    assert (large.segments, large.regions) == (2, ("made", "written"))
    assert large.work == (1, 2)
    assert large.unit == ("ops" if kind.taped else "nodes")
    assert large.bridge_bytes == 8 * 4 * 4
    assert large.record_seconds > 0
    assert report.pool_bytes == kind.pool.nbytes() > 0
    assert json.loads(json.dumps(report.as_dict()))["recordings"][1]["name"] == "token bucket 8"
    assert "token bucket 8" in str(report)
    assert str(report).splitlines()[-1] == f"pool: {report.pool_bytes} bytes"


def test_describe_of_nothing(kind: Any) -> None:
    assert TokenGraph(forward, recorder=kind.recorder).describe().recordings == ()


def test_dot_has_a_cluster_a_recording_and_a_chain_of_nodes(kind: Any) -> None:
    dot = recorded(kind).to_dot()
    assert dot.startswith("digraph")
    assert dot.count("subgraph") == 2
    assert "r1n0 -> r1n1" in dot
    assert '"made\\n128 B across"' in dot
    assert dot.count("{") == dot.count("}")


class TestVerify:
    def test_a_sound_recording_equals_eager_on_fresh_inputs(self, kind: Any) -> None:
        verification = recorded(kind).verify(8)
        assert verification.equal
        assert verification.worst == 0
        assert [o.shape for o in verification.outputs] == [(8, 4)]

    def test_what_python_drew_while_recording_shows_as_a_difference(self, kind: Any) -> None:
        dice = random.Random(0)

        def frozen(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * dice.random(), x + 1

        graph = TokenGraph(frozen, recorder=kind.recorder)
        graph.record(kind.randn(4, 4))
        verification = graph.verify(4)
        assert not verification.equal
        assert verification.outputs[0].worst > 0
        assert verification.outputs[1].worst == 0

    def test_given_inputs_are_used_and_ids_stay_in_range_otherwise(self, kind: Any) -> None:
        table = kind.randn(10, 3)
        graph = TokenGraph(lambda ids, scale: table[ids] * scale, recorder=kind.recorder)
        ids, scale = torch.tensor([1, 9, 4], device=kind.device), kind.randn(3, 1)
        graph.record(ids, scale)
        assert graph.verify(3).equal
        assert graph.verify(3, ids.flip(0), scale * 2).equal

    def test_a_nan_on_one_side_is_infinitely_far(self, kind: Any) -> None:
        state = {"add": 0.0}
        graph = TokenGraph(lambda x: x + state["add"], recorder=kind.recorder)
        graph.record(kind.randn(2, 2))
        state["add"] = float("nan")
        assert graph.verify(2).worst == float("inf")

    def test_a_request_graph_is_verified_on_its_own_buffers(self, kind: Any) -> None:
        x, graph = kind.randn(4, 4), ReqGraph(recorder=kind.recorder)
        graph.record(lambda: x * 2, bucket=(4, 0))
        x.copy_(kind.randn(4, 4, seed=1))
        assert graph.verify((4, 0)).equal
