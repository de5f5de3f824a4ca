"""Decode attention over a paged cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom.models.kernels.reference.precision import widen

if TYPE_CHECKING:
    from atom.models.kernels.attention_plan import DecodePlan


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

    It gathers the block table's whole width and masks by length, so its shapes depend on the bucket alone and
    no value is read on the host: a recording may hold it. `plan` concerns the device kernel and is not used.
    """
    rows, heads, head_dim = query.shape
    seqs, width = block_tables.shape
    block_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    keys = _gather(k_cache, block_tables) * k_scale
    values = _gather(v_cache, block_tables) * v_scale

    # [seqs, kv_heads, query_len * group, tokens]
    grouped = widen(query).reshape(seqs, query_len, kv_heads, heads // kv_heads, head_dim).transpose(1, 2)
    scores = torch.einsum("sktgd,snkd->sktgn", grouped, keys) * scale
    token = torch.arange(width * block_size, device=query.device)
    seen = seq_lens[:, None] - query_len + 1 + torch.arange(query_len, device=query.device)
    hidden = token >= seen[:, :, None]  # [seqs, query_len, tokens]
    scores = scores.masked_fill(hidden[:, None, :, None, :], float("-inf"))
    # what lies in cells nobody wrote may be NaN, and a row that sees nothing is all -inf
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
    unwritten = token >= seq_lens[:, None]
    values = values.masked_fill(unwritten[:, :, None, None], 0.0)
    result = torch.einsum("sktgn,snkd->stkgd", weights, values)
    out.copy_(result.reshape(rows, heads, head_dim))


def _gather(cache: torch.Tensor, block_tables: torch.Tensor) -> torch.Tensor:
    """float32 `[seqs, width * block_size, kv_heads, head_dim]`"""
    if cache.dtype.itemsize == 1:  # torch indexes fp8 as bytes only
        gathered = cache.view(torch.uint8)[block_tables.long()].view(cache.dtype)
    else:
        gathered = cache[block_tables.long()]
    return widen(gathered.flatten(1, 2))
