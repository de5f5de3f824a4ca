"""Ops whose replays skip the dispatcher."""

from __future__ import annotations

import gc

import pytest
import torch

from atom.graphs import ReqGraph, TapeRecorder, TokenGraph, bind_replays

library = torch.library.Library("bound_calls_test", "FRAGMENT")
library.define("twice(Tensor x) -> Tensor")
library.define("add_to(Tensor x, Tensor(a!) out) -> ()")
ran: list[str] = []


def _twice(x: torch.Tensor) -> torch.Tensor:
    ran.append("op")
    return x * 2


def _add_to(x: torch.Tensor, out: torch.Tensor) -> None:
    ran.append("op")
    out.add_(x)


library.impl("twice", _twice, "CPU")
library.impl("add_to", _add_to, "CPU")
twice, add_to = torch.ops.bound_calls_test.twice, torch.ops.bound_calls_test.add_to


@pytest.fixture(autouse=True)
def binders():
    def bind_twice(args, results):
        (x,), (y,) = args, results
        if not x.is_contiguous():
            return None
        address = x.data_ptr()

        def call() -> None:
            ran.append(f"bound {x.data_ptr() == address}")
            torch.mul(x, 2, out=y)

        return call

    def bind_add_to(args, results):
        assert results == []
        return lambda: (ran.append("bound"), args[1].add_(args[0]))

    bind_replays(twice.default, bind_twice)
    bind_replays(add_to.default, bind_add_to)
    ran.clear()


def test_a_replay_calls_what_was_bound_and_not_the_op():
    graph = TokenGraph(lambda x: twice(twice(x) + 1), recorder=TapeRecorder())
    graph.record(torch.ones(4, 3))
    assert ran == ["op", "op"]
    for seed in range(3):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        gc.collect()
        torch.full((1000, 100), torch.nan)  # takes what was freed
        assert torch.equal(graph.replay(x), (x * 2 + 1) * 2)
    assert ran[2:] == ["bound True"] * 6


def test_a_binder_that_declines_has_the_op_replayed():
    graph = TokenGraph(lambda x: twice(x.t()), recorder=TapeRecorder())
    graph.record(torch.ones(3, 3))
    x = torch.randn(3, 3)
    assert torch.equal(graph.replay(x), x.t() * 2)
    assert ran == ["op", "op"]


def test_an_op_that_writes_in_place_is_bound_with_what_it_writes():
    outside = torch.zeros(2, 3)
    weight = torch.ones(2, 3)

    def forward() -> torch.Tensor:
        add_to(weight * 1, outside)
        return outside * 1

    graph = ReqGraph(recorder=TapeRecorder())
    graph.record(forward, bucket=(2, 0))
    outside.zero_()
    for count in (1.0, 2.0, 3.0):
        assert torch.equal(graph.replay((2, 0)), torch.full((2, 3), count))
    assert ran == ["op", "bound", "bound", "bound"]


def test_tensors_from_outside_live_as_long_as_the_recording():
    weights = [torch.full((4, 3), 7.0)]
    graph = TokenGraph(lambda x: twice(weights[0]) + x, recorder=TapeRecorder())
    graph.record(torch.zeros(4, 3))
    weights.clear()
    gc.collect()
    torch.full((1000, 100), torch.nan)
    assert torch.equal(graph.replay(torch.zeros(4, 3)), torch.full((4, 3), 14.0))


def test_a_failing_bound_call_raises_and_the_next_replay_works():
    fails = [False]

    def binder(args, results):
        def call() -> None:
            if fails[0]:
                raise IndexError("out of range")
            torch.mul(args[0], 2, out=results[0])

        return call

    bind_replays(twice.default, binder)
    graph = TokenGraph(lambda x: twice(x), recorder=TapeRecorder())
    graph.record(torch.ones(2, 2))
    fails[0] = True
    with pytest.raises(IndexError, match="out of range"):
        graph.replay(torch.ones(2, 2))
    fails[0] = False
    assert torch.equal(graph.replay(torch.ones(2, 2)), torch.full((2, 2), 2.0))
