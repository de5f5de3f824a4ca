"""Prefill and mixed attention over a paged cache, driven by a work list."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom.models.kernels.reference.precision import widen

if TYPE_CHECKING:
    from atom.models.kernels.attention_plan import PrefillPlan


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

    Walks the work list on the host; `plan` concerns the device kernel and is not used.
    """
    heads = query.shape[1]
    block_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    for seq, first, count, length in work_list.tolist():
        rows = slice(first, first + count)
        if length == 0:
            out[rows] = 0
            continue
        blocks = block_tables[seq, : -(-length // block_size)].long()
        keys = _cells(k_cache, blocks)[:length] * k_scale
        values = _cells(v_cache, blocks)[:length] * v_scale
        grouped = widen(query[rows]).reshape(count, kv_heads, heads // kv_heads, -1)
        scores = torch.einsum("tkgd,nkd->tkgn", grouped, keys) * scale
        seen = length - count + 1 + torch.arange(count, device=query.device)
        hidden = torch.arange(length, device=query.device) >= seen[:, None]
        weights = torch.softmax(scores.masked_fill(hidden[:, None, None, :], float("-inf")), dim=-1)
        out[rows] = torch.einsum("tkgn,nkd->tkgd", weights, values).flatten(1, 2).to(out.dtype)


def _cells(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """float32 `[tokens, kv_heads, head_dim]` of the given blocks."""
    if cache.dtype.itemsize == 1:  # torch indexes fp8 as bytes only
        return cache.view(torch.uint8)[blocks].view(cache.dtype).flatten(0, 1).float()
    return widen(cache[blocks].flatten(0, 1))
