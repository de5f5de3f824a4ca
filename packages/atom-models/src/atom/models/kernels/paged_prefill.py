"""Prefill and mixed attention over a paged cache, driven by a work list in device memory.

A step's sequences may each bring any number of query tokens: a whole prompt, a chunk of one, a suffix after a
cached prefix, one decode token. The grid is the work list's length, fixed by the token bucket; an item says
which rows it covers and how many keys the last of them sees, and unused items return at once. So one recorded
launch serves every step of the bucket. Padding rows get zeros. Keys are split, as in decode, where the bucket
is too small to fill the device.
"""
# ruff: noqa: N803 - compile-time constants are upper case, Triton's own habit

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton.language as tl

from atom.models.kernels.attention_arguments import check_attention
from atom.models.kernels.attention_split import merge_parts, new_parts, split_range, store_tile
from atom.models.kernels.attention_tile import LOG2_E, attend_range
from atom.models.kernels.dependent_launch import inputs_ready, let_next_start
from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.jit import dot_precision, jit
from atom.models.kernels.launch import Launcher
from atom.models.kernels.tiling import next_power_of_2

if TYPE_CHECKING:
    import torch

    from atom.models.kernels.attention_plan import PrefillPlan


@jit
def _prefill_kernel(
    query: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    block_tables: tl.tensor,
    work_list: tl.tensor,
    out: tl.tensor,
    parts: tl.tensor,
    scale_log2: tl.tensor,
    v_scale: tl.tensor,
    Q_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    TABLE_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    kv_head = tl.program_id(0)
    item = work_list + tl.program_id(1) * 4
    split = tl.program_id(2)
    inputs_ready(OVERLAP)
    let_next_start(OVERLAP)
    seq = tl.load(item).to(tl.int64)
    first_row = tl.load(item + 1).to(tl.int64)
    count = tl.load(item + 2)
    length = tl.load(item + 3)  # 0 for padding rows: zeros come back
    if count > 0:
        group: tl.constexpr = HEADS // KV_HEADS
        m = tl.arange(0, BLOCK_M)
        token = m // GROUP_BLOCK
        in_group = m % GROUP_BLOCK
        live = (token < count) & (in_group < group)
        row = first_row + token
        head = kv_head * group + in_group
        dim = tl.arange(0, DIM_BLOCK)
        mask = live[:, None] & (dim < HEAD_DIM)[None, :]
        begin, end = split_range(split, length, SPLITS, BLOCK_N)
        q = tl.load(
            query + row[:, None] * Q_STRIDE + head[:, None] * HEAD_DIM + dim[None, :], mask=mask, other=0.0
        )
        seen = length - count + 1 + token
        values, log_sum = attend_range(
            q, seen, length - count + 1, k_cache, v_cache, block_tables + seq * TABLE_STRIDE, kv_head,
            begin, end, scale_log2, BLOCK_SIZE, KV_HEADS, HEAD_DIM, DIM_BLOCK, BLOCK_M, BLOCK_N, PRECISION,
        )  # fmt: skip
        store_tile(
            out, parts, values, log_sum, v_scale, split, row, head, live,
            OUT_STRIDE, HEADS, HEAD_DIM, DIM_BLOCK, SPLITS,
        )  # fmt: skip


_launch = Launcher(_prefill_kernel)
_prepared: dict[tuple[Any, ...], tuple[tuple[int, int, int], tuple[Any, ...]]] = {}


def paged_prefill(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    work_list: torch.Tensor,
    out: torch.Tensor,
    plan: PrefillPlan,
    *,
    scale: float,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Causal attention of every query row over the cached keys of its sequence, written to `out`.

    query, out: `[rows, heads, head_dim]`, rows may be strided. k_cache, v_cache: `[num_blocks, block_size,
    kv_heads, head_dim]` in the query's dtype or fp8. block_tables: int32 `[seqs, width]`. work_list: int32
    `[plan.items, 4]` made by `build_work_list` with the same plan. The launch depends on the plan and the
    shapes alone.
    """
    key = (
        query.dtype, query.shape, query.stride(), out.shape, out.stride(), k_cache.shape, k_cache.stride(),
        v_cache.shape, v_cache.stride(), block_tables.stride(0), work_list.shape, plan,
    )  # fmt: skip
    found = _prepared.get(key)
    if found is None:
        check_attention(query, k_cache, v_cache, out)
        found = _prepared[key] = _prepare(query, k_cache, block_tables, work_list, out, plan)
    grid, constants = found
    parts = new_parts(query, plan.splits)
    _launch(
        grid,
        (
            query, k_cache, v_cache, block_tables, work_list, out, parts,
            scale * k_scale * LOG2_E, v_scale,
        ),
        constants,
        num_warps=plan.num_warps,
        num_stages=plan.num_stages,
    )  # fmt: skip
    if parts is not None:
        merge_parts(parts, out, v_scale)


def _prepare(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    block_tables: torch.Tensor,
    work_list: torch.Tensor,
    out: torch.Tensor,
    plan: PrefillPlan,
) -> tuple[tuple[int, int, int], tuple[Any, ...]]:
    if work_list.shape != (plan.items, 4):
        raise KernelArgumentError(
            f"paged_prefill: the work list is {tuple(work_list.shape)}, its plan says ({plan.items}, 4)"
        )
    heads, head_dim = query.shape[1:]
    block_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    group_block = next_power_of_2(heads // kv_heads)
    constants = (
        query.stride(0), out.stride(0), block_tables.stride(0), heads, kv_heads, group_block, head_dim,
        next_power_of_2(head_dim), block_size, max(16, plan.block_q * group_block), plan.block_n, plan.splits,
        dot_precision(query.dtype),
    )  # fmt: skip
    return (kv_heads, plan.items, plan.splits), constants
