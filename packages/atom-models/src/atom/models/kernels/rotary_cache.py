"""Rotary embedding of query and key, and the write of key and value into the paged cache, in one launch.

Caches are `[num_blocks, block_size, kv_heads, head_dim]`; a slot is `block * block_size + offset`. Padding
rows carry slots of block 0, which no request owns; a negative slot writes nothing. An fp8 cache stores `value
/ scale`, clamped to the format's range.
"""
# ruff: noqa: N803 - compile-time constants are upper case, Triton's own habit

from __future__ import annotations

import torch
import triton.language as tl

from atom.models.kernels.dependent_launch import inputs_ready, let_next_start
from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.jit import jit
from atom.models.kernels.launch import Launcher
from atom.models.kernels.tiling import ceil_div, next_power_of_2

_HEADS_PER_PROGRAM = 8


@jit
def _cache_value(values: tl.tensor, scale: tl.tensor, cache: tl.tensor, LIMIT: tl.constexpr) -> tl.tensor:
    """`values` in the cache's dtype; LIMIT is the largest number of an fp8 format, 0 for the others."""
    wide = values.to(tl.float32)
    if LIMIT > 0:
        wide = wide / scale
        wide = tl.minimum(tl.maximum(wide, -LIMIT), LIMIT)
    return wide.to(cache.dtype.element_ty)


@jit
def _rotary_cache_kernel(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    positions: tl.tensor,
    cos_sin: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    slot_mapping: tl.tensor,
    k_scale: tl.tensor,
    v_scale: tl.tensor,
    Q_STRIDE: tl.constexpr,
    K_STRIDE: tl.constexpr,
    V_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    HALF: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    WRITE: tl.constexpr,
    LIMIT: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    query_parts: tl.constexpr = (HEADS + HEAD_BLOCK - 1) // HEAD_BLOCK
    is_query = part < query_parts
    head = tl.where(is_query, part, part - query_parts) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)
    live = head < tl.where(is_query, HEADS, KV_HEADS)

    pair = tl.arange(0, HALF)
    in_pair = pair < ROTARY // 2
    if INTERLEAVED:
        first = 2 * pair
        second = 2 * pair + 1
    else:
        first = pair
        second = pair + ROTARY // 2
    inputs_ready(OVERLAP)
    let_next_start(OVERLAP)
    position = tl.load(positions + row).to(tl.int64)
    cos = tl.load(cos_sin + position * ROTARY + pair, mask=in_pair, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(cos_sin + position * ROTARY + ROTARY // 2 + pair, mask=in_pair, other=0.0).to(tl.float32)[
        None, :
    ]
    mask = live[:, None] & in_pair[None, :]

    if is_query:
        base = query + row * Q_STRIDE + head[:, None] * HEAD_DIM
        a = tl.load(base + first[None, :], mask=mask, other=0.0).to(tl.float32)
        b = tl.load(base + second[None, :], mask=mask, other=0.0).to(tl.float32)
        tl.store(base + first[None, :], (a * cos - b * sin).to(query.dtype.element_ty), mask=mask)
        tl.store(base + second[None, :], (b * cos + a * sin).to(query.dtype.element_ty), mask=mask)
    else:
        base = key + row * K_STRIDE + head[:, None] * HEAD_DIM
        a = tl.load(base + first[None, :], mask=mask, other=0.0).to(tl.float32)
        b = tl.load(base + second[None, :], mask=mask, other=0.0).to(tl.float32)
        turned_a = (a * cos - b * sin).to(key.dtype.element_ty)
        turned_b = (b * cos + a * sin).to(key.dtype.element_ty)
        tl.store(base + first[None, :], turned_a, mask=mask)
        tl.store(base + second[None, :], turned_b, mask=mask)
        if WRITE:
            slot = tl.load(slot_mapping + row)
            written = head < tl.where(slot >= 0, KV_HEADS, 0)
            cell = slot * (KV_HEADS * HEAD_DIM) + head[:, None] * HEAD_DIM
            pairs = written[:, None] & in_pair[None, :]
            tl.store(
                k_cache + cell + first[None, :], _cache_value(turned_a, k_scale, k_cache, LIMIT), mask=pairs
            )
            tl.store(
                k_cache + cell + second[None, :], _cache_value(turned_b, k_scale, k_cache, LIMIT), mask=pairs
            )
            column = tl.arange(0, DIM_BLOCK)[None, :]
            if ROTARY < HEAD_DIM:  # the part of a key head that is not rotated
                rest = written[:, None] & (column >= ROTARY) & (column < HEAD_DIM)
                kept = tl.load(base + column, mask=rest, other=0.0)
                tl.store(k_cache + cell + column, _cache_value(kept, k_scale, k_cache, LIMIT), mask=rest)
            whole = written[:, None] & (column < HEAD_DIM)
            values = tl.load(
                value + row * V_STRIDE + head[:, None] * HEAD_DIM + column, mask=whole, other=0.0
            )
            tl.store(v_cache + cell + column, _cache_value(values, v_scale, v_cache, LIMIT), mask=whole)


@jit
def _write_cache_kernel(
    key: tl.tensor,
    value: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    slot_mapping: tl.tensor,
    k_scale: tl.tensor,
    v_scale: tl.tensor,
    K_STRIDE: tl.constexpr,
    V_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    LIMIT: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inputs_ready(OVERLAP)
    let_next_start(OVERLAP)
    slot = tl.load(slot_mapping + row)
    live = column < tl.where(slot >= 0, WIDTH, 0)
    keys = tl.load(key + row * K_STRIDE + column, mask=live, other=0.0)
    values = tl.load(value + row * V_STRIDE + column, mask=live, other=0.0)
    tl.store(k_cache + slot * WIDTH + column, _cache_value(keys, k_scale, k_cache, LIMIT), mask=live)
    tl.store(v_cache + slot * WIDTH + column, _cache_value(values, v_scale, v_cache, LIMIT), mask=live)


_launch_rotary = Launcher(_rotary_cache_kernel)
_launch_write = Launcher(_write_cache_kernel)


def rotary(
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    interleaved: bool = False,
) -> None:
    """Rotate `query` `[rows, heads, head_dim]` and `key` `[rows, kv_heads, head_dim]` in place.

    `positions` is int64 `[rows]`; `cos_sin` is `[max_positions, rotary_dim]`, the cosines of a position
    followed by its sines; only the first `rotary_dim` numbers of a head turn. `interleaved` pairs neighbours
    (2i, 2i+1) instead of halves (i, i + rotary_dim/2). Rows may be strided, heads are dense.
    """
    _rotate(query, key, key, positions, cos_sin, None, interleaved, 1.0, 1.0)


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
    caches = (k_cache, v_cache, slot_mapping)
    _rotate(query, key, value, positions, cos_sin, caches, interleaved, k_scale, v_scale)


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
    """Write `key` and `value` `[rows, kv_heads, head_dim]` to their slots, without rotation."""
    _check_caches(key, k_cache, v_cache)
    rows, width = key.shape[0], key.shape[1] * key.shape[2]
    block = min(1024, next_power_of_2(width))
    _launch_write(
        (rows, ceil_div(width, block), 1),
        (key, value, k_cache, v_cache, slot_mapping, k_scale, v_scale),
        (key.stride(0), value.stride(0), width, block, _fp8_limit(k_cache)),
    )


def _rotate(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None,
    interleaved: bool,
    k_scale: float,
    v_scale: float,
) -> None:
    rows, heads, head_dim = query.shape
    kv_heads = key.shape[1]
    rotary_dim = cos_sin.shape[1]
    if rotary_dim % 2 or rotary_dim > head_dim:
        raise KernelArgumentError(
            f"rotary: cos_sin has width {rotary_dim}, want an even number up to {head_dim}"
        )
    _check_dense_heads(query, "query")
    _check_dense_heads(key, "key")
    k_cache, v_cache, slot_mapping = caches if caches is not None else (None, None, None)
    if k_cache is not None and v_cache is not None:
        _check_dense_heads(value, "value")
        _check_caches(key, k_cache, v_cache)
    head_block = min(_HEADS_PER_PROGRAM, next_power_of_2(heads))
    parts = ceil_div(heads, head_block) + ceil_div(kv_heads, head_block)
    _launch_rotary(
        (rows, parts, 1),
        (query, key, value, positions, cos_sin, k_cache, v_cache, slot_mapping, k_scale, v_scale),
        (
            query.stride(0),
            key.stride(0),
            value.stride(0),
            heads,
            kv_heads,
            head_dim,
            rotary_dim,
            next_power_of_2(rotary_dim // 2),
            next_power_of_2(head_dim),
            head_block,
            interleaved,
            caches is not None,
            0.0 if k_cache is None else _fp8_limit(k_cache),
        ),
    )


def _fp8_limit(cache: torch.Tensor) -> float:
    """Largest number of the cache's format where values must be scaled and clamped into it, else 0."""
    return float(torch.finfo(cache.dtype).max) if cache.dtype.itemsize == 1 else 0.0


def _check_dense_heads(tensor: torch.Tensor, name: str) -> None:
    if (
        tensor.dim() != 3
        or tensor.stride(2) != 1
        or (tensor.shape[1] > 1 and tensor.stride(1) != tensor.shape[2])
    ):
        raise KernelArgumentError(
            f"rotary: {name} must be [rows, heads, head_dim] with dense heads, got {tuple(tensor.shape)} "
            f"with strides {tensor.stride()}"
        )


def _check_caches(key: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    wanted = key.shape[1:]
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.shape[2:] != wanted or not cache.is_contiguous():
            raise KernelArgumentError(
                f"{name} must be dense [num_blocks, block_size, {wanted[0]}, {wanted[1]}], "
                f"got {tuple(cache.shape)}"
            )
