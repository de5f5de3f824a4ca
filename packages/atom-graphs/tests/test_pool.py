"""What the pool promises: tensors that cross a break outlive everything, and buckets share their memory."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from atom.graphs import ReqGraph, TokenGraph, eager_region, graph_pool

HIDDEN = 32
BUCKETS = (64, 32, 8)


class Split(nn.Module):
    """`y = a(x); z = region(y); w = b(z)`, with the region's behaviour to choose."""

    def __init__(self, device: torch.device, form: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(HIDDEN, HIDDEN, device=device)
        self.b = nn.Linear(HIDDEN, HIDDEN, device=device)
        self.form = form

    @eager_region
    def new(self, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(y) + y

    @eager_region
    def view(self, y: torch.Tensor) -> torch.Tensor:
        return y.view(y.shape[0], 2, -1).transpose(1, 2)

    @eager_region
    def given(self, y: torch.Tensor, out: torch.Tensor) -> None:
        torch.add(y, 1, out=out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        if self.form == "given":
            z = torch.empty_like(y)
            self.given(y, z)
        else:
            z = getattr(self, self.form)(y)
        # What the first segment made is read again behind the break.
        out: torch.Tensor = self.b(z.reshape(y.shape)) + y
        return out


@pytest.mark.parametrize("form", ["new", "view", "given"])
def test_what_crosses_survives_other_buckets_and_the_rest_of_the_process(kind: Any, form: str) -> None:
    model = Split(kind.device, form)
    graph = TokenGraph(model, recorder=kind.recorder)
    for rows in BUCKETS:
        with torch.no_grad():
            model(kind.randn(rows, HIDDEN))
        graph.record(kind.randn(rows, HIDDEN))
    held = kind.pool.nbytes()
    order = random.Random(form)
    for step in range(1000 if kind.device.type == "cuda" else 200):
        rows = order.choice((64, 8, 64, 32, 64))
        if step % 5 == 0:
            kind.disturb()
        x = kind.randn(rows, HIDDEN, seed=step)
        with torch.no_grad():
            want = model(x)
        assert torch.equal(graph.replay(x), want), f"replay {step} of bucket {rows}"
    assert kind.pool.nbytes() == held


def pool_bytes_of(kind: Any, ladder: tuple[int, ...]) -> int:
    """Bytes that a ladder adds to the pool of a process, measured by recording into a fresh stretch of it."""
    before = kind.pool.nbytes()
    graph = TokenGraph(Split(kind.device, "new"), recorder=kind.recorder)
    for rows in ladder:
        graph.record(kind.randn(rows, HIDDEN))
    return int(kind.pool.nbytes() - before)


def test_a_ladder_recorded_largest_first_adds_nothing_to_its_largest_recording(kind: Any) -> None:
    pool_bytes_of(kind, (4096,))
    assert pool_bytes_of(kind, (4096, 2048, 1024, 512, 256, 8, 1)) == 0


def test_request_and_token_graphs_share_one_pool(kind: Any) -> None:
    x = kind.randn(2048, HIDDEN)
    tokens, requests = TokenGraph(torch.tanh, recorder=kind.recorder), ReqGraph(recorder=kind.recorder)
    tokens.record(x)
    held = kind.pool.nbytes()
    requests.record(lambda: torch.tanh(x), bucket=(2048, 0))
    assert kind.pool.nbytes() == held


def test_graph_pool_is_one_a_device(kind: Any) -> None:
    assert graph_pool(kind.device) is graph_pool(str(kind.device))
    assert kind.pool is graph_pool(kind.device)
    assert kind.pool.device.type == kind.device.type


def test_a_view_by_address_holds_no_block_and_reads_the_same_memory(kind: Any) -> None:
    block = kind.pool.place(64)
    block.copy_(torch.arange(64, device=kind.device))
    view = kind.pool.view(block[8:16].view(2, 4).t())
    assert torch.equal(view, block[8:16].view(2, 4).t())
    assert view.data_ptr() == block.data_ptr() + 8
    block.zero_()
    assert not view.any()
    outside = kind.randn(3)
    assert kind.pool.view(outside) is outside
    address = block.data_ptr()
    del block
    assert kind.pool.place(64).data_ptr() == address


def test_a_result_is_valid_until_the_next_replay_in_the_pool(kind: Any) -> None:
    graph = TokenGraph(lambda x: x * 2, recorder=kind.recorder)
    for rows in (64, 32):
        graph.record(kind.randn(rows, HIDDEN))
    x = kind.randn(64, HIDDEN, seed=1)
    first = graph.replay(x)
    kind.disturb()
    assert torch.equal(first, x * 2)
    graph.replay(kind.randn(32, HIDDEN, seed=2))
    again = graph.replay(x)
    assert again is first
    assert torch.equal(first, x * 2)
