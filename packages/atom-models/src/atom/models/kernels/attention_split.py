"""Keys split among programs: each one's share, where it leaves its part, and how the parts are merged.

The parts of a step are one float32 buffer `[rows, heads, splits, head_dim + 4]`: a part's weighted values,
already divided by its weights' sum, then the base-2 log of that sum (and padding that keeps 16-byte
alignment). A split that saw no key leaves zeros and -inf.
"""
# ruff: noqa: N803 - compile-time constants are upper case, Triton's own habit

from __future__ import annotations

import torch
import triton.language as tl

from atom.models.kernels.dependent_launch import inputs_ready, let_next_start
from atom.models.kernels.jit import jit
from atom.models.kernels.launch import Launcher
from atom.models.kernels.tiling import next_power_of_2

_TAIL = 4  # numbers of a part after its values


@jit
def split_range(
    split: tl.tensor, length: tl.tensor, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr
) -> tl.tensor:
    """This split's share `[begin, end)` of `length` keys, in whole blocks; empty where there is none left."""
    share = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK_N) * BLOCK_N
    begin = split * share
    return begin, tl.minimum(begin + share, length)


@jit
def store_tile(
    out: tl.tensor,
    parts: tl.tensor,
    values: tl.tensor,
    log_sum: tl.tensor,
    v_scale: tl.tensor,
    split: tl.tensor,
    row: tl.tensor,
    head: tl.tensor,
    live: tl.tensor,
    OUT_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """Write a tile's live rows to `out`, or as this split's part where there are several."""
    dim = tl.arange(0, DIM_BLOCK)
    mask = live[:, None] & (dim < HEAD_DIM)[None, :]
    if SPLITS == 1:
        target = out + row[:, None] * OUT_STRIDE + head[:, None] * HEAD_DIM + dim[None, :]
        tl.store(target, (values * v_scale).to(out.dtype.element_ty), mask=mask)
    else:
        part = parts + ((row * HEADS + head) * SPLITS + split) * (HEAD_DIM + 4)
        tl.store(part[:, None] + dim[None, :], values, mask=mask)
        tl.store(part + HEAD_DIM, log_sum, mask=live)


@jit
def _merge_kernel(
    parts: tl.tensor,
    out: tl.tensor,
    v_scale: tl.tensor,
    OUT_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dim = tl.arange(0, DIM_BLOCK)
    split = tl.arange(0, SPLIT_BLOCK)
    part = parts + ((row * HEADS + head) * SPLITS + split) * (HEAD_DIM + 4)
    inputs_ready(OVERLAP)
    let_next_start(OVERLAP)
    log_sum = tl.load(part + HEAD_DIM, mask=split < SPLITS, other=float("-inf"))
    inside = (split < SPLITS)[:, None] & (dim < HEAD_DIM)[None, :]
    values = tl.load(part[:, None] + dim[None, :], mask=inside, other=0.0)
    top = tl.max(log_sum, axis=0)
    weight = tl.exp2(log_sum - tl.where(top > float("-inf"), top, 0.0))
    total = tl.sum(weight, axis=0)
    merged = tl.sum(values * weight[:, None], axis=0) / tl.where(total > 0, total, 1.0) * v_scale
    target = out + row * OUT_STRIDE + head * HEAD_DIM + dim
    tl.store(target, merged.to(out.dtype.element_ty), mask=dim < HEAD_DIM)


_launch_merge = Launcher(_merge_kernel)


def new_parts(query: torch.Tensor, splits: int) -> torch.Tensor | None:
    """The buffer for the parts of `query` `[rows, heads, head_dim]`; None where nothing is split."""
    if splits == 1:
        return None
    rows, heads, head_dim = query.shape
    return torch.empty((rows, heads, splits, head_dim + _TAIL), dtype=torch.float32, device=query.device)


def merge_parts(parts: torch.Tensor, out: torch.Tensor, v_scale: float) -> None:
    """Merge `parts` into `out` `[rows, heads, head_dim]`; a row that saw no key becomes zeros."""
    rows, heads, splits, width = parts.shape
    head_dim = width - _TAIL
    _launch_merge(
        (rows, heads, 1),
        (parts, out, v_scale),
        (out.stride(0), heads, head_dim, next_power_of_2(head_dim), splits, next_power_of_2(splits)),
        num_warps=2,
    )
