"""Decode attention over a paged cache, split over the keys, with a launch that depends on the bucket alone.

Two stages: each split of a sequence's keys is one program per kv head, which reads the sequence's length and
divides it evenly among the splits on the device; the splits' parts are then merged by their log-sums (flash
decoding). With one split the first stage writes the result itself.
"""
# ruff: noqa: N803 - compile-time constants are upper case, Triton's own habit

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton.language as tl

from atom.models.kernels.attention_arguments import check_attention
from atom.models.kernels.attention_plan import DecodePlan, plan_decode
from atom.models.kernels.attention_split import merge_parts, new_parts, split_range, store_tile
from atom.models.kernels.attention_tile import LOG2_E, attend_range
from atom.models.kernels.dependent_launch import inputs_ready, let_next_start
from atom.models.kernels.jit import dot_precision, jit
from atom.models.kernels.launch import Launcher
from atom.models.kernels.tiling import next_power_of_2

if TYPE_CHECKING:
    import torch


@jit
def _decode_kernel(
    query: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    block_tables: tl.tensor,
    seq_lens: tl.tensor,
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
    QUERY_LEN: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
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

    inputs_ready(OVERLAP)
    let_next_start(OVERLAP)
    length = tl.load(seq_lens + seq)
    begin, end = split_range(split, length, SPLITS, BLOCK_N)
    q = tl.load(
        query + row[:, None] * Q_STRIDE + head[:, None] * HEAD_DIM + dim[None, :], mask=mask, other=0.0
    )
    seen = length - QUERY_LEN + 1 + token
    # a padding sequence has no keys: zeros come back
    values, log_sum = attend_range(
        q, seen, length - QUERY_LEN + 1, k_cache, v_cache, block_tables + seq * TABLE_STRIDE, kv_head,
        begin, end, scale_log2, BLOCK_SIZE, KV_HEADS, HEAD_DIM, DIM_BLOCK, BLOCK_M, BLOCK_N, PRECISION,
    )  # fmt: skip
    store_tile(
        out, parts, values, log_sum, v_scale, split, row, head, live,
        OUT_STRIDE, HEADS, HEAD_DIM, DIM_BLOCK, SPLITS,
    )  # fmt: skip


_launch = Launcher(_decode_kernel)
_prepared: dict[tuple[Any, ...], tuple[DecodePlan, tuple[int, int, int], tuple[Any, ...]]] = {}


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

    query, out: `[seqs * query_len, heads, head_dim]`, rows may be strided. k_cache, v_cache:
    `[num_blocks, block_size, kv_heads, head_dim]` in the query's dtype or fp8 (`k_scale`, `v_scale` undo the
    scaling of the write). block_tables: int32 `[seqs, width]`. seq_lens: int32 `[seqs]`, this step's tokens
    included; 0 marks a padding sequence, whose output is zeros. The launch depends on shapes alone. `plan`
    overrides `plan_decode`.
    """
    # everything worked out from shapes is kept: a call costs the host little more than its launches
    key = (
        query.dtype, query.shape, query.stride(), out.shape, out.stride(), k_cache.shape, k_cache.stride(),
        v_cache.shape, v_cache.stride(), block_tables.shape, block_tables.stride(0), query_len, plan,
    )  # fmt: skip
    found = _prepared.get(key)
    if found is None:
        check_attention(query, k_cache, v_cache, out)
        found = _prepared[key] = _prepare(query, k_cache, block_tables, out, query_len, plan)
    made, grid, constants = found
    parts = new_parts(query, made.splits)
    _launch(
        grid,
        (
            query, k_cache, v_cache, block_tables, seq_lens, out, parts,
            scale * k_scale * LOG2_E, v_scale,
        ),
        constants,
        num_warps=made.num_warps,
        num_stages=made.num_stages,
    )  # fmt: skip
    if parts is not None:
        merge_parts(parts, out, v_scale)


def _prepare(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    block_tables: torch.Tensor,
    out: torch.Tensor,
    query_len: int,
    plan: DecodePlan | None,
) -> tuple[DecodePlan, tuple[int, int, int], tuple[Any, ...]]:
    heads, head_dim = query.shape[1:]
    block_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    seqs, width = block_tables.shape
    made = plan or plan_decode(
        seqs=seqs,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_seqlen_k=width * block_size,
        dtype=query.dtype,
        processors=None if query.is_cuda else 4,
    )
    group_block = next_power_of_2(heads // kv_heads)
    constants = (
        query.stride(0), out.stride(0), block_tables.stride(0), heads, kv_heads, group_block, query_len,
        head_dim, next_power_of_2(head_dim), block_size,
        max(16, next_power_of_2(query_len) * group_block), made.block_n, made.splits,
        dot_precision(query.dtype),
    )  # fmt: skip
    return made, (made.splits, kv_heads, seqs), constants
