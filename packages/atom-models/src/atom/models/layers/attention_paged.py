"""Attention by the CPU kernel that reads the pages where they lie: few query rows a sequence, any lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom.models.cpu import cpu_kernels, ops

if TYPE_CHECKING:
    from atom.graphs.forward_context import AttentionMetaData
    from atom.models.layers.attention_plan import PagedGroup


def has_paged_kernel(query: torch.Tensor, cache: torch.Tensor) -> bool:
    """Whether the kernel takes queries `[rows, heads, head_dim]` and caches like these."""
    if not ops.has_kernel(query) or cache.dtype is not torch.float32 or not cache.is_contiguous():
        return False
    kernels = cpu_kernels()
    return kernels is not None and kernels.has_head_dim(query.shape[2])


def paged_bucket_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    output: torch.Tensor,
    *,
    metadata: AttentionMetaData,
    scale: float,
) -> None:
    """Uniform batches, as `bucket_attention`; the rows of `output` past the live ones become zero."""
    assert metadata.request_bucket is not None
    query_len = metadata.request_bucket[1] + 1
    live = metadata.block_tables.shape[0] * query_len
    ops.paged_attention(
        *(query[:live], k_cache, v_cache, metadata.block_tables, metadata.seq_lens),
        *(output[:live], query_len, scale),
    )
    if output.shape[0] > live:
        output[live:].zero_()


def paged_group_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    output: torch.Tensor,
    *,
    group: PagedGroup,
    scale: float,
) -> None:
    """A ragged step's sequences with few rows; their rows of `output` are written."""
    chosen = (k_cache, v_cache, group.block_tables, group.seq_lens)
    if isinstance(group.rows, slice):
        ops.paged_attention(query[group.rows], *chosen, output[group.rows], group.query_len, scale)
        return
    queries = query.index_select(0, group.rows)
    attended = torch.empty_like(queries)
    ops.paged_attention(queries, *chosen, attended, group.query_len, scale)
    output.index_copy_(0, group.rows, attended)
