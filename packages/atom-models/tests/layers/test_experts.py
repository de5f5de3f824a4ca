"""Experts against one row and one expert at a time, in float64, whichever way they are run."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from atom.graphs import TapeRecorder, TokenGraph
from atom.models.layers import experts as module
from atom.models.layers.experts import Experts
from atom.models.layers.router import softmax_top_k

CPU = torch.device("cpu")


def make(num_experts=5, hidden=12, width=7, limit=None) -> Experts:
    torch.manual_seed(0)
    layer = Experts(num_experts, hidden, width, swiglu_limit=limit, dtype=torch.float32, device=CPU)
    for _, _, matrix in layer.parts():
        matrix.normal_()
    return layer


def route(rows: int, k: int, num_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.stack([torch.randperm(num_experts)[:k] for _ in range(rows)])
    return ids, torch.rand(rows, k)


def one_by_one(layer: Experts, x, ids, weights) -> torch.Tensor:
    wide = {(number, part): matrix.double() for number, part, matrix in layer.parts()}
    limit = float("inf") if layer.limit is None else layer.limit
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row, (chosen, shares) in enumerate(zip(ids.tolist(), weights.double(), strict=True)):
        for number, share in zip(chosen, shares, strict=True):
            gate = (wide[number, "gate"] @ x[row].double()).clamp(max=limit)
            up = (wide[number, "up"] @ x[row].double()).clamp(-limit, limit)
            out[row] += share * (wide[number, "down"] @ (F.silu(gate) * up))
    return out


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize(("rows", "k"), [(1, 1), (1, 5), (3, 2), (40, 3)])
def test_rows_equal_float64(rows, k, limit):
    layer = make(limit=limit)
    x, (ids, weights) = torch.randn(rows, 12), route(rows, k, 5)
    torch.testing.assert_close(
        layer(x, ids, weights).double(), one_by_one(layer, x, ids, weights), atol=1e-4, rtol=1e-4
    )


def test_many_rows_go_expert_by_expert_and_some_may_be_visited_by_none(monkeypatch):
    layer = make()
    monkeypatch.setattr(module, "_FEW_ROWS", 10)
    monkeypatch.setattr(layer, "_gathered", None)
    x, (ids, weights) = torch.randn(30, 12), route(30, 2, 4)  # nobody is sent to the fifth
    torch.testing.assert_close(
        layer(x, ids, weights).double(), one_by_one(layer, x, ids, weights), atol=1e-4, rtol=1e-4
    )


def test_what_would_gather_too_much_is_done_in_turns(monkeypatch):
    layer = make()
    x, (ids, weights) = torch.randn(9, 12), route(9, 2, 5)
    whole = layer(x, ids, weights)
    monkeypatch.setattr(module, "_GATHERED_BYTES", 4 * 2 * 3 * 7 * 12 * 4)  # four rows
    torch.testing.assert_close(layer(x, ids, weights), whole)


def test_no_row_is_no_work():
    layer = make()
    assert layer(torch.zeros(0, 12), torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 2)).shape == (0, 12)


def test_a_recording_serves_other_choices():
    layer = make()

    def forward(x: torch.Tensor) -> torch.Tensor:
        return layer(x, *softmax_top_k(x[:, :5], 2, renormalise=True))

    graph = TokenGraph(forward, recorder=TapeRecorder())
    graph.record(torch.randn(6, 12))
    for _ in range(3):
        x = torch.randn(6, 12)
        assert torch.equal(graph.replay(x), forward(x))


@pytest.mark.parametrize("renormalise", [True, False])
def test_the_router_takes_the_largest_of_the_softmax(renormalise):
    logits = torch.tensor([[1.0, 3.0, 2.0, -1.0]])
    ids, weights = softmax_top_k(logits, 2, renormalise=renormalise)
    assert ids.tolist() == [[1, 2]]
    wanted = logits.softmax(-1)[0, [1, 2]]
    torch.testing.assert_close(weights[0], wanted / wanted.sum() if renormalise else wanted)
