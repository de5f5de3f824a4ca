from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.graphs.arena import ALIGNMENT, MIN_CHUNK, Arena

CPU = torch.device("cpu")


def test_a_block_comes_back_when_the_last_tensor_over_it_dies() -> None:
    arena = Arena(CPU)
    block = arena.place(100)
    address, view = block.data_ptr(), block[50:].view(torch.int16)
    del block
    assert list(arena.live) == [address]
    del view
    assert not arena.live
    assert arena.used_bytes == 0
    assert arena.place(100).data_ptr() == address


def test_blocks_are_aligned_and_disjoint() -> None:
    arena = Arena(CPU)
    blocks = [arena.place(n) for n in (1, 63, 64, 65, 1000)]
    spans = sorted((b.data_ptr(), b.data_ptr() + b.numel()) for b in blocks)
    assert all(start % ALIGNMENT == 0 for start, _ in spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_it_grows_for_what_does_not_fit_and_reuses_what_fits() -> None:
    arena = Arena(CPU)
    first = arena.place(MIN_CHUNK)
    second = arena.place(3 * MIN_CHUNK)
    assert arena.reserved_bytes == 4 * MIN_CHUNK
    del first, second
    kept = [arena.place(MIN_CHUNK) for _ in range(4)]
    assert arena.reserved_bytes == 4 * MIN_CHUNK
    assert len({k.data_ptr() for k in kept}) == 4


def test_a_view_outside_of_it_is_the_tensor_itself() -> None:
    arena = Arena(CPU)
    outside = torch.zeros(3)
    assert arena.view(outside) is outside


@settings(max_examples=50, deadline=None, derandomize=True)
@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=40), seed=st.integers(0, 1000))
def test_any_order_of_taking_and_giving_back_ends_with_everything_free(sizes: list[int], seed: int) -> None:
    arena, order = Arena(CPU), random.Random(seed)
    held: list[torch.Tensor] = []
    for mark, size in enumerate(sizes):
        block = arena.place(size).fill_(mark % 251)
        held.append(block)
        del block
        if order.random() < 0.5:
            held.pop(order.randrange(len(held)))
        assert all((b == b[0]).all() for b in held)
    assert len(arena.live) == len(held)
    held.clear()
    assert arena.used_bytes == 0
    assert sum(len(chunk.free) for chunk in arena._chunks) == len(arena._chunks)


def test_other_devices_have_no_tensors_by_address() -> None:
    with pytest.raises(ValueError, match="no tensors by address on device meta"):
        Arena(torch.device("meta")).place(8)
