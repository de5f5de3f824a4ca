"""Launch shapes of paged attention, from the bucket alone.

Nothing here looks at a step's lengths: a plan made for a bucket holds for every step that pads to it, which
is what lets a graph record the launch. The lengths are read on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.tiling import next_power_of_2

__all__ = ["DecodePlan", "PrefillPlan", "plan_decode", "plan_prefill"]

_MAX_SPLITS = 32
_MIN_SPLIT_TOKENS = 64
_FALLBACK_PROCESSORS = 64  # where there is no device to ask (the interpreter)


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """How many ways each sequence's keys are split, and the tile."""

    splits: int
    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """The tile (`block_q` query tokens by `block_n` keys), the work list's length, the splits of the keys."""

    block_q: int
    items: int
    splits: int
    block_n: int
    num_warps: int
    num_stages: int


def plan_decode(
    *,
    seqs: int,
    kv_heads: int,
    head_dim: int,
    max_seqlen_k: int,
    dtype: torch.dtype,
    processors: int | None = None,
) -> DecodePlan:
    """Plan for `seqs` sequences of up to `max_seqlen_k` cached tokens (the block table's width in tokens).

    `processors` is the device's multiprocessor count; None asks the current device.
    """
    count = _processors(processors)
    block_n = _block_n(head_dim, dtype) * (2 if head_dim * dtype.itemsize <= 512 else 1)
    programs = max(1, seqs * kv_heads)
    # two programs a processor keep enough loads in flight; more splits only add merging
    wanted = 2 * count // programs
    useful = -(-max_seqlen_k // max(_MIN_SPLIT_TOKENS, block_n))
    splits = max(1, min(wanted, useful, _MAX_SPLITS))
    return DecodePlan(splits, block_n, num_warps=4, num_stages=2)


def plan_prefill(
    *,
    rows: int,
    max_seqs: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    max_seqlen_k: int,
    dtype: torch.dtype,
    processors: int | None = None,
) -> PrefillPlan:
    """Plan for a token bucket of `rows` query tokens shared by at most `max_seqs` sequences."""
    if rows < 1 or max_seqs < 1:
        raise KernelArgumentError(f"plan_prefill: rows {rows} and max_seqs {max_seqs} must be at least 1")
    count = _processors(processors)
    group = heads // kv_heads
    block_m = _block_m(rows, group, head_dim, dtype)
    block_q = max(1, block_m // next_power_of_2(group))
    parts = min(max_seqs + 1, rows)  # the padding rows count as one more sequence
    items = (rows + parts * (block_q - 1)) // block_q
    block_n = _block_n(head_dim, dtype)
    useful = -(-max_seqlen_k // max(_MIN_SPLIT_TOKENS, block_n))
    wanted = 2 * count // max(1, items * kv_heads)
    splits = max(1, min(wanted, useful, _MAX_SPLITS))
    return PrefillPlan(block_q, items, splits, block_n, num_warps=4, num_stages=_stages(head_dim, dtype))


def _processors(given: int | None) -> int:
    if given is not None:
        return given
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return _FALLBACK_PROCESSORS


def _block_n(head_dim: int, dtype: torch.dtype) -> int:
    return 64 if head_dim * dtype.itemsize <= 256 else 32


def _block_m(rows: int, group: int, head_dim: int, dtype: torch.dtype) -> int:
    """Rows of a query tile: what fits the registers, but no more than the bucket can fill."""
    largest = 128 if head_dim * dtype.itemsize <= 256 else 64
    return max(16, min(largest, next_power_of_2(rows * group)))


def _stages(head_dim: int, dtype: torch.dtype) -> int:
    return 3 if head_dim * dtype.itemsize <= 512 else 2
