"""How large the KV cache is, and its tensors.

Everything follows from the model's `CacheSpec`s: paged tensors share one block table, so a block costs the
sum over all layers; slot tensors cost a fixed amount for each sequence that runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atom.graphs.forward_context import KVCacheTensor
from atom.graphs.region_graph import graph_pool
from atom.runner.errors import KVCacheError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atom.config import CacheSpec, KVCacheConfig

DEFAULT_CPU_BYTES = 1 << 30
"""Memory for the cache on a CPU where the configuration names none."""
_ALIGNMENT = 64
"""Bytes, as torch's own CPU allocations have it."""
PADDING_UNITS = 1
"""Block 0 and slot 0 take the writes of padding rows and belong to no request."""


@dataclass(frozen=True)
class KVCacheLayout:
    """The settled size of the cache. `num_blocks` and `num_slots` leave out those of padding."""

    block_size: int
    num_blocks: int
    num_slots: int
    bytes_per_block: int
    bytes_per_slot: int

    @property
    def capacity(self) -> int:
        """Tokens in all blocks."""
        return self.num_blocks * self.block_size

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, padding included."""
        return (self.num_blocks + PADDING_UNITS) * self.bytes_per_block + (
            self.num_slots + PADDING_UNITS
        ) * self.bytes_per_slot


def plan_kv_cache(
    specs: Sequence[CacheSpec],
    config: KVCacheConfig,
    *,
    max_num_seqs: int,
    max_model_len: int,
    budget_bytes: int | None,
) -> KVCacheLayout:
    """Settle how many blocks there are.

    `config.num_kv_blocks` wins, then `config.kv_cache_memory_bytes`, then `budget_bytes` (None: the CPU's
    default). More blocks than `max_num_seqs` sequences of `max_model_len` tokens could fill are not
    allocated.

    Raises:
        KVCacheError: not one block fits.
    """
    size = config.block_size
    per_block = sum(spec.bytes_per_block(size) for spec in specs)
    per_slot = sum(spec.bytes_per_slot() for spec in specs)
    num_slots = max_num_seqs if per_slot else 0
    # A model without paged caches still counts its sequences' tokens in blocks.
    useful = max_num_seqs * -(-max_model_len // size)
    if config.num_kv_blocks is not None:
        return KVCacheLayout(size, config.num_kv_blocks, num_slots, per_block, per_slot)
    budget, source = budget_bytes, "the memory left"
    if config.kv_cache_memory_bytes is not None:
        budget, source = config.kv_cache_memory_bytes, "kv_cache_memory_bytes"
    elif budget is None:
        budget, source = DEFAULT_CPU_BYTES, "the default for a CPU"
    budget -= (num_slots + PADDING_UNITS) * per_slot
    fitting = useful if per_block == 0 else budget // per_block - PADDING_UNITS
    if fitting < 1 or budget < 0:
        raise KVCacheError(
            f"no room for a KV cache: {source} gives {_mib(budget)} for blocks of {_mib(per_block)} each "
            f"(block_size={size}, {num_slots} sequence slots set aside): raise gpu_memory_utilization or "
            "kv_cache_memory_bytes, or lower max_num_seqs or block_size"
        )
    return KVCacheLayout(size, min(fitting, useful), num_slots, per_block, per_slot)


def allocate_kv_cache(
    specs: Sequence[CacheSpec],
    layout: KVCacheLayout,
    layers: Mapping[int, Any],
    device: torch.device,
) -> dict[str, KVCacheTensor]:
    """Zeroed cache tensors of every layer, by layer name; `layers` gives the integer ids.

    Zeroed, since attention multiplies what it masks: uninitialised memory may hold NaN.
    """
    layer_ids = {layer.layer_name: layer_id for layer_id, layer in layers.items()}
    caches: dict[str, KVCacheTensor] = {}
    for spec in specs:
        if spec.kind == "paged":
            shape = (
                layout.num_blocks + PADDING_UNITS,
                spec.rows_per_block(layout.block_size),
                *spec.row_shape,
            )
        else:
            shape = (layout.num_slots + PADDING_UNITS, spec.rows_per_slot, *spec.row_shape)
        tensor = _zeros(shape, getattr(torch, spec.dtype), device)
        cache = caches.setdefault(spec.layer_name, KVCacheTensor(layer_ids.get(spec.layer_name, -1)))
        cache.tensors[spec.name] = tensor
    return caches


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Pages that the system zeroes when they are first written: a cache that a short run hardly uses costs
    # nothing.
    nbytes = math.prod(shape) * dtype.itemsize
    buffer = torch.from_numpy(np.zeros(nbytes + _ALIGNMENT, dtype=np.uint8))
    start = -buffer.data_ptr() % _ALIGNMENT
    return buffer[start : start + nbytes].view(dtype).view(shape)


def device_budget(device: torch.device, utilization: float, *, reserve_bytes: int) -> int:
    """Bytes a GPU has left for the cache.

    `reserve_bytes` is what a forward and the graph pool need beyond what is allocated now: measured by
    running them.

    Raises:
        KVCacheError: nothing is left.
    """
    free, total = torch.cuda.mem_get_info(device)
    # Memory that torch holds but does not use can serve the cache too, unless it belongs to the graph pool.
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    held = max(0, held - graph_pool(device).nbytes())
    left = int(total * utilization) - (total - free) + held - reserve_bytes
    if left <= 0:
        raise KVCacheError(
            f"no room for a KV cache: {_mib(total - free)} of {_mib(total)} are taken, forward and graphs "
            f"need {_mib(reserve_bytes)} more, and gpu_memory_utilization={utilization} allows "
            f"{_mib(int(total * utilization))}"
        )
    return left


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"
