"""What decode and prefill attention share: one query tile over a range of paged keys, and the merge of
splits.

A tile packs the query heads that share a kv head (the GQA group) with the query tokens: row m is token `m //
GROUP`, head `kv_head * GROUP + m % GROUP`. Softmax is the running one in base 2. The range is walked in two
loops: blocks that every row sees whole run without masks, the rest with them.
"""
# ruff: noqa: N803 - compile-time constants are upper case, Triton's own habit

from __future__ import annotations

import triton.language as tl

from atom.models.kernels.jit import jit

LOG2_E = 1.4426950408889634


@jit
def attend(
    q: tl.tensor,
    seen: tl.tensor,
    accumulator: tl.tensor,
    row_max: tl.tensor,
    row_sum: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    table: tl.tensor,
    kv_head: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    scale_log2: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """Fold keys `[begin, end)` into the running softmax. Row m sees the keys below `seen[m]`."""
    dim = tl.arange(0, DIM_BLOCK)
    lane = tl.arange(0, BLOCK_N)
    for start in tl.range(begin, end, BLOCK_N):
        token = start + lane
        if MASKED:
            live = token < end
            block = tl.load(table + token // BLOCK_SIZE, mask=live, other=0)
        else:
            block = tl.load(table + token // BLOCK_SIZE)
        cell = (block.to(tl.int64) * BLOCK_SIZE + token % BLOCK_SIZE) * (
            KV_HEADS * HEAD_DIM
        ) + kv_head * HEAD_DIM
        if MASKED:
            # dead lanes must load zeros: a NaN left in a cache block would survive a weight of 0
            inside = live[:, None] & (dim < HEAD_DIM)[None, :]
            k = tl.load(k_cache + cell[:, None] + dim[None, :], mask=inside, other=0.0)
            v = tl.load(v_cache + cell[:, None] + dim[None, :], mask=inside, other=0.0)
        elif DIM_BLOCK != HEAD_DIM:
            inside = (dim < HEAD_DIM)[None, :]
            k = tl.load(k_cache + cell[:, None] + dim[None, :], mask=inside, other=0.0)
            v = tl.load(v_cache + cell[:, None] + dim[None, :], mask=inside, other=0.0)
        else:
            k = tl.load(k_cache + cell[:, None] + dim[None, :])
            v = tl.load(v_cache + cell[:, None] + dim[None, :])
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION) * scale_log2
        if MASKED:
            scores = tl.where(live[None, :] & (token[None, :] < seen[:, None]), scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        anchor = new_max
        if MASKED:
            anchor = tl.where(new_max == float("-inf"), 0.0, new_max)  # a row that has seen nothing yet
        weights = tl.exp2(scores - anchor[:, None])
        decay = tl.exp2(row_max - anchor)
        row_sum = row_sum * decay + tl.sum(weights, axis=1)
        accumulator = tl.dot(
            weights.to(q.dtype), v.to(q.dtype), acc=accumulator * decay[:, None], input_precision=PRECISION
        )
        row_max = new_max
    return accumulator, row_max, row_sum


@jit
def attend_range(
    q: tl.tensor,
    seen: tl.tensor,
    all_see: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    table: tl.tensor,
    kv_head: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    scale_log2: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """Softmax-weighted values of keys `[begin, end)`, divided by the weights' sum, and the base-2 log of that
    sum.

    Every row sees the keys below `all_see`. A row that sees no key gets zeros and -inf.
    """
    accumulator = tl.zeros([BLOCK_M, DIM_BLOCK], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    whole = tl.maximum(tl.minimum(end, all_see) - begin, 0) // BLOCK_N * BLOCK_N
    accumulator, row_max, row_sum = attend(
        q, seen, accumulator, row_max, row_sum, k_cache, v_cache, table, kv_head, begin, begin + whole,
        scale_log2, BLOCK_SIZE, KV_HEADS, HEAD_DIM, DIM_BLOCK, BLOCK_N, False, PRECISION,
    )  # fmt: skip
    accumulator, row_max, row_sum = attend(
        q, seen, accumulator, row_max, row_sum, k_cache, v_cache, table, kv_head, begin + whole, end,
        scale_log2, BLOCK_SIZE, KV_HEADS, HEAD_DIM, DIM_BLOCK, BLOCK_N, True, PRECISION,
    )  # fmt: skip
    saw = row_sum > 0
    divisor = tl.where(saw, row_sum, 1.0)
    log_sum = tl.where(saw, row_max + tl.log2(divisor), float("-inf"))
    return accumulator / divisor[:, None], log_sum
