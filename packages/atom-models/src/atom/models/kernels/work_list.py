"""The list of query tiles that prefill attention walks, built on the device from the step's own tensors.

An item is int32 `(sequence, first query row, query rows, keys the last of them sees)`. A sequence's tiles
come last one first: they see the most keys, and starting the longest programs first evens out their ends.
Rows past the live ones form a last pseudo-sequence whose tiles see no key, so that attention writes zeros
there. Items past those have 0 rows.
"""
# ruff: noqa: N803 - compile-time constants are upper case, Triton's own habit

from __future__ import annotations

from typing import TYPE_CHECKING

import triton.language as tl

from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.jit import jit
from atom.models.kernels.launch import Launcher
from atom.models.kernels.tiling import ceil_div, next_power_of_2

if TYPE_CHECKING:
    import torch

    from atom.models.kernels.attention_plan import PrefillPlan

_ITEMS_PER_PROGRAM = 8


@jit
def _work_list_kernel(
    cu_seqlens_q: tl.tensor,
    seq_lens: tl.tensor,
    work_list: tl.tensor,
    seqs: tl.tensor,
    rows: tl.tensor,
    items: tl.tensor,
    BLOCK_Q: tl.constexpr,
    SEQ_BLOCK: tl.constexpr,
    ITEM_BLOCK: tl.constexpr,
) -> None:
    seq = tl.arange(0, SEQ_BLOCK)
    # entry `seqs` is the pseudo-sequence of padding rows [cu_seqlens_q[seqs], rows)
    start = tl.load(cu_seqlens_q + seq, mask=seq <= seqs, other=0)
    stop = tl.load(cu_seqlens_q + seq + 1, mask=seq < seqs, other=0)
    stop = tl.where(seq == seqs, rows, stop)
    query_rows = tl.maximum(stop - start, 0)
    tiles = (query_rows + BLOCK_Q - 1) // BLOCK_Q
    tile_end = tl.cumsum(tiles, axis=0)

    item = tl.program_id(0) * ITEM_BLOCK + tl.arange(0, ITEM_BLOCK)
    # the sequence whose tiles hold this item is the first one whose running count exceeds it
    holder = (tile_end[None, :] > item[:, None]) & ((tile_end - tiles)[None, :] <= item[:, None])
    found = tl.sum(holder.to(tl.int32), axis=1) > 0
    owner = tl.sum(tl.where(holder, seq[None, :], 0), axis=1)
    begins = tl.sum(tl.where(holder, start[None, :], 0), axis=1)
    length = tl.sum(tl.where(holder, query_rows[None, :], 0), axis=1)
    ends = tl.sum(tl.where(holder, tile_end[None, :], 0), axis=1)

    tile = ends - 1 - item  # last tile first
    offset = tile * BLOCK_Q
    count = tl.where(found, tl.minimum(length - offset, BLOCK_Q), 0)
    padding = owner == seqs
    keys = tl.load(seq_lens + owner, mask=found & (owner < seqs), other=0)
    last_sees = tl.where(padding | (keys == 0), 0, keys - length + offset + count)
    target = work_list + item * 4
    inside = item < items
    tl.store(target, tl.where(padding, 0, owner), mask=inside)
    tl.store(target + 1, begins + offset, mask=inside)
    tl.store(target + 2, count, mask=inside)
    tl.store(target + 3, tl.where(found, last_sees, 0), mask=inside)


_launch = Launcher(_work_list_kernel)


def build_work_list(
    cu_seqlens_q: torch.Tensor, seq_lens: torch.Tensor, rows: int, plan: PrefillPlan, work_list: torch.Tensor
) -> None:
    """Fill `work_list` int32 `[plan.items, 4]` for a step padded to `rows` query rows.

    cu_seqlens_q: int32 `[seqs + 1]`; padding sequences repeat the last entry. seq_lens: int32 `[seqs]`, this
    step's tokens included.
    """
    seqs = seq_lens.shape[0]
    if (
        cu_seqlens_q.shape != (seqs + 1,)
        or work_list.shape != (plan.items, 4)
        or not work_list.is_contiguous()
    ):
        raise KernelArgumentError(
            f"work list: {seqs} sequences want cu_seqlens_q [{seqs + 1}] and work_list [{plan.items}, 4]"
            f", got {tuple(cu_seqlens_q.shape)} and {tuple(work_list.shape)}"
        )
    _launch(
        (ceil_div(plan.items, _ITEMS_PER_PROGRAM), 1, 1),
        (cu_seqlens_q, seq_lens, work_list, seqs, rows, plan.items),
        (plan.block_q, next_power_of_2(seqs + 1), _ITEMS_PER_PROGRAM),
    )
