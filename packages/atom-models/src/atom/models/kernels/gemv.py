"""Matrix-vector product for a batch of one, at the speed the weights can be read.

A program owns a few output rows and walks the columns in wide blocks, multiplying in float32 without the
matrix units: nothing but the weight stream costs time, so neighbouring work is free to fuse. A norm before
the product (`rms_norm(x) @ W.T`) is applied as columns stream by, its factor at the end; SiLU-mul and the
residual add follow in registers. The first weights are read before the kernel that makes `x` has ended
(`dependent_launch`).
"""
# ruff: noqa: N803 - compile-time constants are upper case, Triton's own habit

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from atom.models.kernels.dependent_launch import inputs_ready, let_next_start
from atom.models.kernels.jit import jit
from atom.models.kernels.launch import Launcher
from atom.models.kernels.linear_arguments import check_linear
from atom.models.kernels.tiling import ceil_div, next_power_of_2


@dataclass(frozen=True, slots=True)
class GemvConfig:
    """Output rows and columns a program takes at a time."""

    block_n: int = 2
    block_k: int = 1024
    num_warps: int = 4


@jit
def _weights(
    weight: tl.tensor,
    output: tl.tensor,
    start: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    BLOCK_K: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
) -> tl.tensor:
    column = start + tl.arange(0, BLOCK_K)
    address = weight + output.to(tl.int64)[:, None] * k + column[None, :]
    if EVEN_N and EVEN_K:
        values = tl.load(address)
    else:
        values = tl.load(address, mask=(output < n)[:, None] & (column < k)[None, :], other=0.0)
    return values


@jit
def _inputs(
    x: tl.tensor,
    norm_weight: tl.tensor,
    start: tl.tensor,
    k: tl.tensor,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    NORM: tl.constexpr,
) -> tl.tensor:
    """A block of x, times the norm's gain where there is one, and its squares."""
    column = start + tl.arange(0, BLOCK_K)
    if EVEN_K:
        values = tl.load(x + column).to(tl.float32)
    else:
        values = tl.load(x + column, mask=column < k, other=0.0).to(tl.float32)
    squares = values * values
    if NORM:
        values *= tl.load(norm_weight + column, mask=column < k, other=0.0).to(tl.float32)
    return values, squares


@jit
def _gemv_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    norm_weight: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    eps: tl.tensor,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
    SILU: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    output = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    live = output < n
    up_weight = weight + n.to(tl.int64) * k
    # the first block of weights needs nothing from the kernel before
    first = _weights(weight, output, 0, n, k, BLOCK_K, EVEN_N, EVEN_K)
    if SILU:
        first_up = _weights(up_weight, output, 0, n, k, BLOCK_K, EVEN_N, EVEN_K)
    inputs_ready(OVERLAP)
    let_next_start(OVERLAP)
    added = tl.zeros([BLOCK_N], dtype=tl.float32)  # read now, so that the end does not wait for it
    if BIAS:
        added += tl.load(bias + output, mask=live, other=0.0).to(tl.float32)
    if RESIDUAL:
        added += tl.load(residual + output, mask=live, other=0.0).to(tl.float32)
    values, squares = _inputs(x, norm_weight, 0, k, BLOCK_K, EVEN_K, NORM)
    products = first.to(tl.float32) * values[None, :]
    if SILU:
        up_products = first_up.to(tl.float32) * values[None, :]
    for start in tl.range(BLOCK_K, k, BLOCK_K):
        block = _weights(weight, output, start, n, k, BLOCK_K, EVEN_N, EVEN_K)
        values, more = _inputs(x, norm_weight, start, k, BLOCK_K, EVEN_K, NORM)
        squares += more
        products += block.to(tl.float32) * values[None, :]
        if SILU:
            up_block = _weights(up_weight, output, start, n, k, BLOCK_K, EVEN_N, EVEN_K)
            up_products += up_block.to(tl.float32) * values[None, :]
    result = tl.sum(products, axis=1)
    if NORM:
        factor = tl.rsqrt(tl.sum(squares, axis=0) / k + eps)
        result *= factor
    if SILU:
        up = tl.sum(up_products, axis=1)
        if NORM:
            up *= factor
        result = result / (1.0 + tl.exp(-result)) * up
    tl.store(out + output, (result + added).to(out.dtype.element_ty), mask=live)


_launch = Launcher(_gemv_kernel)


def gemv(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    norm_weight: torch.Tensor | None = None,
    eps: float = 0.0,
    silu: bool = False,
    config: GemvConfig | None = None,
) -> torch.Tensor:
    """`x @ weight.T` for one row, float32 inside, rounded once; new `[1, n]` in x's dtype.

    x: `[1, k]`. weight: dense `[n, k]`, or `[2n, k]` with `silu`, which gives `silu(gate) * up` of the two
    halves; it must not be written by the launch just before. bias: `[n]`, not with `silu`. residual: `[1,
    n]`, added. norm_weight: `[k]`, `rms_norm(x, norm_weight, eps)` first.
    """
    n, k = check_linear(x, weight, bias, residual, norm_weight, silu, most_rows=1)
    chosen = config or GemvConfig()
    block_n = max(1, chosen.block_n // 2) if silu else chosen.block_n
    block_k = min(chosen.block_k, next_power_of_2(k))
    out = torch.empty((1, n), dtype=x.dtype, device=x.device)
    _launch(
        (ceil_div(n, block_n), 1, 1),
        (x, weight, bias, residual, norm_weight, out, n, k, eps),
        (
            block_n, block_k, n % block_n == 0, k % block_k == 0, bias is not None, residual is not None,
            norm_weight is not None, silu,
        ),
        num_warps=chosen.num_warps,
    )  # fmt: skip
    return out
