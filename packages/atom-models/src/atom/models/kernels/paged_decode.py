"""Decode attention over a paged cache, split over the keys, with a launch that depends on the bucket alone.

Two stages: each split of a sequence's keys is one program per kv head, which reads the sequence's length and
divides it evenly among the splits on the device; the splits are then merged by their log-sums (flash
decoding). With one split the first stage writes the result itself.
"""
# ruff: noqa: N803 - compile-time constants are upper case, Triton's own habit

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.models.kernels.attention_plan import DecodePlan, plan_decode
from atom.models.kernels.attention_tile import (
    LOG2_E,
    attend_range,
    check_attention,
    merge_splits,
    split_range,
)
from atom.models.kernels.jit import dot_precision, jit
from atom.models.kernels.launch import Launcher


@jit
def _decode_kernel(
    query: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    block_tables: tl.tensor,
    seq_lens: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    log_sums: tl.tensor,
    scale_log2: tl.tensor,
    v_scale: tl.tensor,
    Q_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    TABLE_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    QUERY_LEN: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    split = tl.program_id(0)
    kv_head = tl.program_id(1)
    seq = tl.program_id(2).to(tl.int64)
    group: tl.constexpr = HEADS // KV_HEADS

    m = tl.arange(0, BLOCK_M)
    token = m // GROUP_BLOCK
    in_group = m % GROUP_BLOCK
    live = (token < QUERY_LEN) & (in_group < group)
    row = seq * QUERY_LEN + token
    head = kv_head * group + in_group
    dim = tl.arange(0, DIM_BLOCK)
    mask = live[:, None] & (dim < HEAD_DIM)[None, :]

    length = tl.load(seq_lens + seq)
    begin, end = split_range(split, length, SPLITS, BLOCK_N)
    if begin < end:
        q = tl.load(
            query + row[:, None] * Q_STRIDE + head[:, None] * HEAD_DIM + dim[None, :], mask=mask, other=0.0
        )
        seen = length - QUERY_LEN + 1 + token
        values, log_sum = attend_range(
            q, seen, length - QUERY_LEN + 1, k_cache, v_cache, block_tables + seq * TABLE_STRIDE, kv_head,
            begin, end, scale_log2, BLOCK_SIZE, KV_HEADS, HEAD_DIM, DIM_BLOCK, BLOCK_M, BLOCK_N, PRECISION,
        )  # fmt: skip
        if SPLITS == 1:
            target = out + row[:, None] * OUT_STRIDE + head[:, None] * HEAD_DIM + dim[None, :]
            tl.store(target, (values * v_scale).to(out.dtype.element_ty), mask=mask)
        else:
            entry = (row * HEADS + head) * SPLITS + split
            tl.store(partial + entry[:, None] * HEAD_DIM + dim[None, :], values, mask=mask)
            tl.store(log_sums + entry, log_sum, mask=live)
    elif SPLITS == 1:  # a padding sequence
        target = out + row[:, None] * OUT_STRIDE + head[:, None] * HEAD_DIM + dim[None, :]
        tl.store(target, tl.zeros([BLOCK_M, DIM_BLOCK], dtype=out.dtype.element_ty), mask=mask)
    else:
        entry = (row * HEADS + head) * SPLITS + split
        tl.store(log_sums + entry, tl.full([BLOCK_M], float("-inf"), dtype=tl.float32), mask=live)


_launch = Launcher(_decode_kernel)


def paged_decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    query_len: int = 1,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    plan: DecodePlan | None = None,
) -> None:
    """Attention of `query_len` tokens a sequence over its cached keys, causal among those tokens; written to
    `out`.

    query, out: `[seqs * query_len, heads, head_dim]`, rows may be strided. k_cache, v_cache: `[num_blocks,
    block_size, kv_heads, head_dim]` in the query's dtype or fp8 (`k_scale`, `v_scale` undo the scaling of the
    write). block_tables: int32 `[seqs, width]`. seq_lens: int32 `[seqs]`, this step's tokens included; 0
    marks a padding sequence, whose output is zeros. The launch depends on shapes alone. `plan` overrides
    `plan_decode`.
    """
    check_attention(query, k_cache, v_cache, out)
    rows, heads, head_dim = query.shape
    block_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    seqs, width = block_tables.shape
    if plan is None:
        plan = plan_decode(
            seqs=seqs,
            kv_heads=kv_heads,
            head_dim=head_dim,
            max_seqlen_k=width * block_size,
            dtype=query.dtype,
            processors=None if query.is_cuda else 4,
        )
    group_block = triton.next_power_of_2(heads // kv_heads)
    partial = log_sums = None
    if plan.splits > 1:
        partial = torch.empty((rows, heads, plan.splits, head_dim), dtype=torch.float32, device=query.device)
        log_sums = torch.empty((rows, heads, plan.splits), dtype=torch.float32, device=query.device)
    _launch(
        (plan.splits, kv_heads, seqs),
        (
            query, k_cache, v_cache, block_tables, seq_lens, out, partial, log_sums,
            scale * k_scale * LOG2_E, v_scale,
        ),
        (
            query.stride(0), out.stride(0), block_tables.stride(0), heads, kv_heads, group_block, query_len,
            head_dim, triton.next_power_of_2(head_dim), block_size,
            max(16, triton.next_power_of_2(query_len) * group_block), plan.block_n, plan.splits,
            dot_precision(query.dtype),
        ),
        num_warps=plan.num_warps,
        num_stages=plan.num_stages,
    )  # fmt: skip
    if partial is not None and log_sums is not None:
        merge_splits(partial, log_sums, out, v_scale)
