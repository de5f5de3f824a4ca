"""Sizes and tensors of the cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from atom.config import CacheSpec, KVCacheConfig
from atom.runner import KVCacheError
from atom.runner.kv_cache import DEFAULT_CPU_BYTES, allocate_kv_cache, device_budget, plan_kv_cache
from atom.runner.memory import measured_budget

PAGED = [
    CacheSpec("a", "k", "paged", (2, 8), "float32"),
    CacheSpec("a", "v", "paged", (2, 8), "float32"),
    CacheSpec("b", "compressed", "paged", (10,), "bfloat16", tokens_per_row=4),
]
SLOT = CacheSpec("b", "state", "slot", (3,), "float32", rows_per_slot=2)
PER_BLOCK = 2 * 16 * 2 * 8 * 4 + 4 * 10 * 2


def plan(specs=PAGED, *, budget=None, max_num_seqs=4, max_model_len=10_000_000, **config):
    return plan_kv_cache(
        specs,
        KVCacheConfig(block_size=16, **config),
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        budget_bytes=budget,
    )


def test_blocks_fill_the_budget_and_leave_one_for_padding():
    layout = plan(budget=10 * PER_BLOCK + PER_BLOCK - 1)
    assert (layout.num_blocks, layout.bytes_per_block, layout.capacity) == (9, PER_BLOCK, 144)
    assert layout.nbytes == 10 * PER_BLOCK


def test_a_number_of_blocks_given_wins():
    assert plan(budget=10 * PER_BLOCK, num_kv_blocks=3, kv_cache_memory_bytes=10**9).num_blocks == 3


def test_bytes_given_win_over_what_is_left():
    assert plan(budget=10**9, kv_cache_memory_bytes=5 * PER_BLOCK).num_blocks == 4


def test_a_cpu_has_a_default():
    assert plan().num_blocks == DEFAULT_CPU_BYTES // PER_BLOCK - 1


def test_no_more_than_all_sequences_could_use():
    assert plan(max_num_seqs=3, max_model_len=33).num_blocks == 3 * 3


def test_slots_come_out_of_the_budget_first():
    layout = plan([*PAGED, SLOT], budget=10 * PER_BLOCK + 5 * 24)
    assert (layout.num_slots, layout.bytes_per_slot, layout.num_blocks) == (4, 24, 9)
    assert plan(budget=10 * PER_BLOCK).num_slots == 0


@pytest.mark.parametrize("budget", [0, PER_BLOCK, 2 * PER_BLOCK - 1])
def test_no_room_for_a_block_is_an_error(budget):
    with pytest.raises(KVCacheError, match="no room for a KV cache: the memory left gives"):
        plan(budget=budget)


def test_tensors_have_the_shapes_of_their_specs_and_hold_zeros():
    specs = [*PAGED, SLOT]
    layers = {0: SimpleNamespace(layer_name="a"), 7: SimpleNamespace(layer_name="b")}
    caches = allocate_kv_cache(specs, plan(specs, num_kv_blocks=5), layers, torch.device("cpu"))
    assert {name: cache.layer_id for name, cache in caches.items()} == {"a": 0, "b": 7}
    assert caches["a"].k_cache.shape == caches["a"].v_cache.shape == (6, 16, 2, 8)
    assert caches["b"].tensors["compressed"].shape == (6, 4, 10)
    assert caches["b"].tensors["compressed"].dtype == torch.bfloat16
    assert caches["b"].tensors["state"].shape == (5, 2, 3)
    assert all(t.data_ptr() % 64 == 0 for cache in caches.values() for t in cache.tensors.values())
    assert not any(tensor.any() for cache in caches.values() for tensor in cache.tensors.values())


def test_a_cpus_memory_is_not_measured():
    assert measured_budget(SimpleNamespace(device=torch.device("cpu"))) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_what_utilization_leaves():
    device = torch.device("cuda")
    total = torch.cuda.mem_get_info(device)[1]
    half, less = (device_budget(device, 0.5, reserve_bytes=reserve) for reserve in (0, 1 << 33))
    assert half <= total // 2
    # Between two looks others may take or give back some: a tenth of what was reserved at most.
    assert abs(half - less - (1 << 33)) < (1 << 33) / 10
    with pytest.raises(KVCacheError, match=r"gpu_memory_utilization=0\.5 allows"):
        device_budget(device, 0.5, reserve_bytes=total)
