"""The two torch bodies of paged attention, on any device.

Shapes: query and output `[rows, heads, head_dim]`, key and value `[rows, kv_heads, head_dim]`, caches
`[blocks, block_size, kv_heads, head_dim]`; query head `h` belongs to key head `h // (heads / kv_heads)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from atom.models.cpu import ops
from atom.models.layers.attention_paged import paged_group_attention
from atom.models.layers.attention_plan import PagedGroup

if TYPE_CHECKING:
    from atom.graphs.forward_context import AttentionMetaData
    from atom.models.layers.attention_plan import RaggedPlan, SequenceGroup


def write_cache(cache: torch.Tensor, rows: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Put row `i` of `rows` into slot `slot_mapping[i]`; rows without a slot stay out."""
    if rows.shape[0] != slot_mapping.shape[0]:
        rows = rows[: slot_mapping.shape[0]]
    if ops.has_kernel(rows) and cache.dtype == rows.dtype and cache.is_contiguous():
        ops.write_cache(cache, rows, slot_mapping)
        return
    rows = rows if rows.dtype == cache.dtype else rows.to(cache.dtype)
    cache.view(-1, *cache.shape[2:]).index_copy_(0, slot_mapping, rows)


def ragged_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    output: torch.Tensor,
    *,
    plan: RaggedPlan,
    scale: float,
) -> None:
    """Any batch, one call a group of sequences; the rows of `output` past the live ones become zero.

    Keys and values of this step must be in the caches already.
    """
    for group in plan.groups:
        if isinstance(group, PagedGroup):
            paged_group_attention(query, k_cache, v_cache, output, group=group, scale=scale)
            continue
        if group.whole and k_cache.dtype == key.dtype:
            keys = key[group.rows].transpose(0, 1).unsqueeze(0)
            values = value[group.rows].transpose(0, 1).unsqueeze(0)
        else:
            keys, values = _cached(k_cache, group, query.dtype), _cached(v_cache, group, query.dtype)
        # One slice less where one group has all rows: a step of small launches is host time.
        all_rows = group.covers_all and query.shape[0] == plan.num_rows
        queries = query if all_rows else query[group.rows]
        attended = _attend(queries, keys, values, group.mask, scale, group.query_len, group.whole)
        if all_rows:
            output.copy_(attended)
        elif isinstance(group.rows, slice):
            output[group.rows] = attended
        else:
            output.index_copy_(0, group.rows, attended)
    if output.shape[0] > plan.num_rows:
        output[plan.num_rows :].zero_()


def bucket_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    output: torch.Tensor,
    *,
    metadata: AttentionMetaData,
    scale: float,
) -> None:
    """Uniform batches; every shape follows from the bucket and the width of the block tables.

    Lengths are read from tensors and masked, nothing is read on the host, so that one recording serves every
    step padded to the bucket. A padding sequence attends to the first key of block 0: finite, and read by
    nobody. Keys and values of this step must be in the caches already.
    """
    num_seqs, width = metadata.block_tables.shape
    assert metadata.request_bucket is not None
    query_len = metadata.request_bucket[1] + 1
    live = num_seqs * query_len
    device, key_len = query.device, width * k_cache.shape[1]
    blocks = metadata.block_tables.reshape(-1)
    last_seen = metadata.seq_lens[:, None] - query_len + torch.arange(query_len, device=device)
    visible = torch.arange(key_len, device=device) <= last_seen.clamp(min=0)[..., None]
    keys = _by_head(k_cache.index_select(0, blocks), num_seqs, query.dtype)
    values = _by_head(v_cache.index_select(0, blocks), num_seqs, query.dtype)
    output[:live] = _attend(query[:live], keys, values, visible.unsqueeze(1), scale, query_len, causal=False)
    if output.shape[0] > live:
        output[live:].zero_()


def _cached(cache: torch.Tensor, group: SequenceGroup, dtype: torch.dtype) -> torch.Tensor:
    """A group's keys or values, `[seqs, kv_heads, key_len, head_dim]`, a view where they lie together."""
    if isinstance(group.keys, slice):
        # What view, slice and transpose would give, in one launch; write_cache has seen that blocks adjoin.
        _, row, head, one = cache.stride()
        size = (1, cache.shape[2], group.key_len, cache.shape[3])
        begin = cache.storage_offset() + group.keys.start * row
        found = cache.as_strided(size, (row, head, row, one), begin)
        return found if found.dtype == dtype else found.to(dtype)
    gathered = _by_head(cache.index_select(0, group.keys), group.num_seqs, dtype)
    return gathered if gathered.shape[2] == group.key_len else gathered[:, :, : group.key_len]


def _by_head(blocks: torch.Tensor, num_seqs: int, dtype: torch.dtype) -> torch.Tensor:
    """Gathered blocks, equally many a sequence, as `[seqs, kv_heads, tokens, head_dim]`."""
    blocks = blocks if blocks.dtype == dtype else blocks.to(dtype)
    return blocks.view(num_seqs, -1, *blocks.shape[2:]).transpose(1, 2)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    query_len: int,
    causal: bool,
) -> torch.Tensor:
    """`[rows, heads, head_dim]` as `query`, whose rows are sequences of `query_len`; keys `[seqs, kv_heads,
    tokens, head_dim]`."""
    rows, heads, head_dim = query.shape
    kv_heads = key.shape[1]
    if query_len == 1:
        # Heads of one group share their keys, so they may as well be its rows.
        queries = query.view(rows, kv_heads, heads // kv_heads, head_dim)
    else:
        queries = query.view(-1, query_len, heads, head_dim).transpose(1, 2)
    attended = F.scaled_dot_product_attention(
        queries,
        key,
        value,
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=queries.shape[1] != kv_heads,
    )
    if query_len != 1:
        attended = attended.transpose(1, 2)
    return attended.reshape(rows, heads, head_dim)
