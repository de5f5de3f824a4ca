"""Pages: nobody shares one by accident, none gets lost, block 0 is nobody's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.runner import KVCacheError, SamplingParams
from atom.runner.block_manager import PADDING_BLOCK, BlockManager
from atom.runner.request import Request


@pytest.fixture
def make_request():
    return request_of


def request_of(token_ids):
    return Request(
        request_id="r",
        index=0,
        token_ids=list(token_ids),
        num_prompt=len(token_ids),
        params=SamplingParams(),
        seed=0,
        stop_token_ids=frozenset(),
        max_total=10_000,
    )


def computed(manager, request, num_tokens):
    assert manager.grow(request, num_tokens)
    request.num_computed = num_tokens
    manager.register(request)


def test_a_cache_needs_a_block():
    with pytest.raises(KVCacheError, match="num_kv_blocks=0: must be at least 1"):
        BlockManager(0, 4)


def test_growing_takes_just_the_blocks_needed_and_never_block_0(make_request):
    manager, request = BlockManager(3, 4), make_request(range(12))
    assert manager.grow(request, 5)
    assert (len(request.blocks), manager.num_free) == (2, 1)
    assert manager.grow(request, 8)
    assert len(request.blocks) == 2
    assert manager.grow(request, 12)
    assert sorted(request.blocks) == [1, 2, 3]
    assert PADDING_BLOCK not in request.blocks


def test_growing_beyond_what_is_free_changes_nothing(make_request):
    manager, first, second = BlockManager(3, 4), make_request(range(8)), make_request(range(8))
    assert manager.grow(first, 8)
    assert not manager.grow(second, 8)
    assert (second.blocks, manager.num_free) == ([], 1)
    manager.release(first)
    assert manager.num_free == 3
    assert manager.grow(second, 8)


def test_a_prefix_is_shared_as_long_as_it_is_equal(make_request):
    manager = BlockManager(8, 4)
    first = make_request(range(12))
    computed(manager, first, 12)
    second = make_request([*range(8), 99, 99, 99, 99, 99])
    manager.reuse_prefix(second)
    assert second.blocks == first.blocks[:2]
    assert second.num_computed == second.num_reused == 8
    manager.release(first)
    assert manager.num_free == 6  # the two shared ones are still held
    manager.release(second)
    assert manager.num_free == 8


def test_equal_tokens_after_another_beginning_are_not_shared(make_request):
    manager = BlockManager(8, 4)
    computed(manager, make_request([1, 2, 3, 4, 5, 6, 7, 8]), 8)
    other = make_request([9, 9, 9, 9, 5, 6, 7, 8, 1])
    manager.reuse_prefix(other)
    assert other.blocks == []


def test_one_token_is_always_left_to_compute(make_request):
    manager = BlockManager(8, 4)
    computed(manager, make_request(range(8)), 8)
    same = make_request(range(8))
    manager.reuse_prefix(same)
    assert same.num_computed == 4


def test_blocks_that_are_not_computed_yet_are_not_found(make_request):
    manager = BlockManager(8, 4)
    first = make_request(range(9))
    assert manager.grow(first, 9)
    first.num_computed = 7
    manager.register(first)
    second = make_request(range(9))
    manager.reuse_prefix(second)
    assert second.num_computed == 4


def test_a_free_block_is_found_until_it_is_taken_for_other_tokens(make_request):
    manager = BlockManager(4, 4)
    first = make_request(range(8))
    computed(manager, first, 8)
    manager.release(first)
    again = make_request(range(9))
    manager.reuse_prefix(again)
    assert again.num_computed == 8
    manager.release(again)
    other = make_request(range(100, 116))
    assert manager.grow(other, 16)
    manager.release(other)
    lost = make_request(range(9))
    manager.reuse_prefix(lost)
    assert lost.num_computed == 0


def test_what_nobody_can_find_is_used_up_first_and_a_prefix_loses_its_end_first(make_request):
    manager = BlockManager(5, 4)
    first = make_request(range(12))
    computed(manager, first, 12)
    unknown = make_request(range(50, 58))
    assert manager.grow(unknown, 8)
    manager.release(first)
    manager.release(unknown)
    taker = make_request(range(70, 82))
    assert manager.grow(taker, 12)  # both unknown ones, and the end of the prefix
    again = make_request(range(13))
    manager.reuse_prefix(again)
    assert again.num_computed == 8


def test_without_prefix_caching_nothing_is_found(make_request):
    manager = BlockManager(8, 4, prefix_caching=False)
    computed(manager, make_request(range(8)), 8)
    second = make_request(range(9))
    manager.reuse_prefix(second)
    assert second.num_computed == 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_sequence_of_uses_keeps_the_books(data):
    """Blocks in use and free ones add up; a block has two holders only where their tokens are equal."""
    manager = BlockManager(12, 2)
    live: list[Request] = []
    for _ in range(data.draw(st.integers(1, 40))):
        if live and data.draw(st.booleans()):
            manager.release(live.pop(data.draw(st.integers(0, len(live) - 1))))
            continue
        request = request_of(data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=10)))
        manager.reuse_prefix(request)
        if not manager.grow(request, len(request.token_ids)):
            manager.release(request)
            continue
        request.num_computed = len(request.token_ids)
        manager.register(request)
        live.append(request)
        held: dict[int, tuple[int, ...]] = {}
        for other in live:
            for i, block in enumerate(other.blocks):
                contents = tuple(other.token_ids[: 2 * i + 2])
                assert held.setdefault(block, contents) == contents
        assert PADDING_BLOCK not in held
        assert len(held) + manager.num_free == manager.num_blocks
    for request in live:
        manager.release(request)
    assert manager.num_free == manager.num_blocks
