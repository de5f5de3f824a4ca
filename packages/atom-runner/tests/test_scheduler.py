"""Who runs next: order, budget, preemption."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.runner import SamplingParams
from atom.runner.block_manager import BlockManager
from atom.runner.request import NO_ROW, Request
from atom.runner.scheduler import Scheduler


def request_of(name, prompt_len, max_tokens=4):
    return Request(
        request_id=name,
        index=0,
        token_ids=list(range(prompt_len)),
        num_prompt=prompt_len,
        params=SamplingParams(max_tokens=max_tokens),
        seed=0,
        stop_token_ids=frozenset(),
        max_total=prompt_len + max_tokens,
    )


def scheduler_of(num_blocks=100, block_size=4, *, max_num_seqs=4, budget=16, chunked=True):
    blocks = BlockManager(num_blocks, block_size, prefix_caching=False)
    return Scheduler(
        blocks, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, chunked_prefill=chunked
    )


def run(scheduler):
    """One step in which every sequence that is due samples token 7."""
    plan = scheduler.plan()
    described = {
        request.request_id: length for request, length in zip(plan.requests, plan.query_lens, strict=True)
    }
    scheduler.computed(plan)
    for request in plan.requests:
        if request.num_computed == len(request.token_ids):
            request.append(7)
    scheduler.remove_finished()
    return described, plan


def test_decoding_comes_before_new_prompts_and_a_long_prompt_takes_what_is_left():
    scheduler = scheduler_of(budget=10)
    for name, length in (("a", 4), ("b", 20), ("c", 3)):
        scheduler.add(request_of(name, length))
    assert run(scheduler)[0] == {"a": 4, "b": 6}
    assert run(scheduler)[0] == {"a": 1, "b": 9}
    assert run(scheduler)[0] == {"a": 1, "b": 5, "c": 3}
    assert run(scheduler)[0] == {"a": 1, "b": 1, "c": 1}


def test_a_step_with_prompt_tokens_is_a_prefill_and_one_without_is_not():
    scheduler = scheduler_of()
    scheduler.add(request_of("a", 1))
    assert run(scheduler)[1].is_prefill  # one row, and still a prompt's
    assert not run(scheduler)[1].is_prefill
    scheduler.add(request_of("b", 2))
    assert run(scheduler)[1].is_prefill
    assert not run(scheduler)[1].is_prefill


def test_without_chunks_a_prompt_waits_for_a_step_it_fits_in():
    scheduler = scheduler_of(budget=10, chunked=False)
    scheduler.add(request_of("a", 6))
    scheduler.add(request_of("b", 6))
    assert run(scheduler)[0] == {"a": 6}
    assert run(scheduler)[0] == {"a": 1, "b": 6}


def test_no_more_sequences_run_than_there_are_rows():
    scheduler = scheduler_of(max_num_seqs=2)
    for name in "abc":
        scheduler.add(request_of(name, 2, max_tokens=2))
    assert set(run(scheduler)[0]) == {"a", "b"}
    assert set(run(scheduler)[0]) == {"a", "b"}
    assert set(run(scheduler)[0]) == {"c"}


def test_the_youngest_gives_way_and_starts_again_with_all_its_tokens():
    scheduler = scheduler_of(num_blocks=5, block_size=2, budget=100)
    old, young = request_of("old", 4, max_tokens=4), request_of("young", 3, max_tokens=4)
    scheduler.add(old)
    scheduler.add(young)
    assert run(scheduler)[0] == {"old": 4, "young": 3}
    assert run(scheduler)[0] == {"old": 1, "young": 1}
    assert run(scheduler)[0] == {"old": 1}  # young's fifth token needs a block, and old holds the last one
    assert (young.row, young.blocks, young.num_computed) == (NO_ROW, [], 0)
    assert young.token_ids == [0, 1, 2, 7, 7]
    assert (young.num_preemptions, scheduler.num_preemptions) == (1, 1)
    assert run(scheduler)[0] == {"old": 1}
    described, plan = run(scheduler)
    assert (described, plan.is_prefill) == ({"young": 5}, True)
    assert young.token_ids == [0, 1, 2, 7, 7, 7]


def test_a_preempted_request_comes_before_those_that_never_ran():
    scheduler = scheduler_of(num_blocks=5, block_size=2, budget=100)
    for name, length in (("old", 4), ("young", 3), ("new", 1)):
        scheduler.add(request_of(name, length))
    for _ in range(3):
        run(scheduler)
    assert [request.request_id for request in scheduler._waiting] == ["young", "new"]


def test_a_newcomer_leaves_each_that_runs_a_block_to_grow_into():
    scheduler = scheduler_of(num_blocks=5, block_size=2, budget=100)
    for name in ("a", "b", "c"):
        scheduler.add(request_of(name, 2, max_tokens=2))
    assert run(scheduler)[0] == {
        "a": 2,
        "b": 2,
        "c": 2,
    }  # five blocks: three, and one more for a and b
    scheduler = scheduler_of(num_blocks=4, block_size=2, budget=100)
    for name in ("a", "b", "c"):
        scheduler.add(request_of(name, 2, max_tokens=2))
    assert run(scheduler)[0] == {"a": 2, "b": 2}
    assert run(scheduler)[0] == {"a": 1, "b": 1}
    assert run(scheduler)[0] == {"c": 2}
    assert scheduler.num_preemptions == 0


@pytest.mark.parametrize("when", ["waiting", "running", "preempted"])
def test_ending_a_request_early_frees_what_it_held(when):
    scheduler = scheduler_of(num_blocks=5, block_size=2, budget=100, max_num_seqs=2)
    old, young = request_of("old", 4), request_of("young", 3)
    scheduler.add(old)
    scheduler.add(young)
    if when != "waiting":
        run(scheduler)
    if when == "preempted":
        run(scheduler)
        run(scheduler)
        assert young.num_preemptions == 1
    scheduler.finish(young, "error")
    scheduler.finish(young, "error")
    while scheduler.num_running or scheduler.num_waiting:
        assert "young" not in run(scheduler)[0]
    assert scheduler.blocks.num_free == 5


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 14), st.integers(1, 8)), min_size=1, max_size=8),
    num_blocks=st.integers(11, 16),
    budget=st.integers(1, 20),
    max_num_seqs=st.integers(1, 4),
    aborts=st.dictionaries(st.integers(0, 12), st.integers(0, 7), max_size=3),
)
def test_every_mix_ends_with_all_tokens_and_all_blocks(sizes, num_blocks, budget, max_num_seqs, aborts):
    """Any mix of lengths, limits and aborts ends; nobody loses a token, nobody keeps a block."""
    scheduler = scheduler_of(num_blocks, 2, max_num_seqs=max_num_seqs, budget=budget)
    requests = [request_of(str(i), *size) for i, size in enumerate(sizes)]
    for request in requests:
        scheduler.add(request)
    aborted = set()
    for step in range(3_000):
        if not (scheduler.num_running or scheduler.num_waiting):
            break
        if step in aborts and aborts[step] < len(requests) and not requests[aborts[step]].finished:
            aborted.add(aborts[step])
            scheduler.finish(requests[aborts[step]], "error")
            continue
        plan = run(scheduler)[1]
        assert 0 < plan.num_tokens <= budget
        assert len(plan.requests) <= max_num_seqs
        rows = [request.row for request in plan.requests if request.row != NO_ROW]
        assert len(set(rows)) == len(rows)
    assert scheduler.blocks.num_free == num_blocks
    for i, (request, (prompt_len, max_tokens)) in enumerate(zip(requests, sizes, strict=True)):
        if i not in aborted:
            assert request.token_ids == [*range(prompt_len), *[7] * max_tokens]
            assert request.finish_reason == "length"
