"""Rotary embedding of query and key, and the write of key and value into the paged cache."""

from __future__ import annotations

import torch

from atom.models.kernels.reference.precision import widen


def rotary(
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    interleaved: bool = False,
) -> None:
    """Rotate `query` and `key` `[rows, heads, head_dim]` in place; `cos_sin` is `[positions, rotary_dim]`."""
    cos, sin = widen(cos_sin[positions]).unsqueeze(1).chunk(2, dim=-1)
    width = cos_sin.shape[1]
    for heads in (query, key):
        turning = widen(heads[..., :width])
        a, b = (turning[..., 0::2], turning[..., 1::2]) if interleaved else turning.chunk(2, dim=-1)
        turned = (a * cos - b * sin, b * cos + a * sin)
        joined = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
        heads[..., :width] = joined.to(heads.dtype)


def rotary_and_cache(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    interleaved: bool = False,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """`rotary`, and the rotated key and the value written to their slots (`slot_mapping`, int64 `[rows]`)."""
    rotary(query, key, positions, cos_sin, interleaved=interleaved)
    write_cache(key, value, k_cache, v_cache, slot_mapping, k_scale=k_scale, v_scale=v_scale)


def write_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Write `key` and `value` `[rows, kv_heads, head_dim]` to their slots.

    A negative slot's row goes to slot 0, of the padding block, so that nothing here depends on the slots'
    values.
    """
    slots = slot_mapping.clamp(min=0)
    for rows, cache, scale in ((key, k_cache, k_scale), (value, v_cache, v_scale)):
        stored = rows
        if cache.dtype.itemsize == 1:
            limit = torch.finfo(cache.dtype).max
            stored = (widen(rows) / scale).clamp(-limit, limit)
        _slots_of(cache).index_copy_(0, slots, _storable(stored.to(cache.dtype)))


def _slots_of(cache: torch.Tensor) -> torch.Tensor:
    return _storable(cache).view(-1, *cache.shape[2:])


def _storable(tensor: torch.Tensor) -> torch.Tensor:
    """fp8 tensors as bytes: torch copies those by index on every device."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
