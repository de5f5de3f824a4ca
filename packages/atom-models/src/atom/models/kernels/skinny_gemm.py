"""Matrix product for 2 to 64 rows, where reading the weights decides the time.

Tiles are narrow, so that even a 4096-wide projection gives every processor a stream of weights, and deep in
k, with several loads in flight. Where n is too small for that, the columns are split (`split_k`) and the
parts added in a fixed order by a second launch: the same inputs give the same bits. Weights may be repacked
once at load (`packed_weight.pack`), so that a program's tiles lie one after the other in memory.
"""
# ruff: noqa: N803 - compile-time constants are upper case, Triton's own habit

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from atom.models.kernels.dependent_launch import inputs_ready, let_next_start
from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.jit import dot_precision, jit
from atom.models.kernels.launch import Launcher
from atom.models.kernels.linear_arguments import check_linear
from atom.models.kernels.tiling import ceil_div, next_power_of_2

MOST_ROWS = 64


@dataclass(frozen=True, slots=True)
class SkinnyConfig:
    """Tile, split and pipeline of a launch; `weight_first`: weights on the matrix unit's wide side."""

    block_n: int = 64
    block_k: int = 128
    split_k: int = 1
    num_warps: int = 4
    num_stages: int = 5
    weight_first: bool = False


@jit
def _weight_tile(
    weight: tl.tensor,
    first: tl.tensor,
    step: tl.tensor,
    limit: tl.tensor,
    k: tl.tensor,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    PACKED: tl.constexpr,
) -> tl.tensor:
    """Rows `[first, first + BLOCK_N)` below `limit` and columns `[step * BLOCK_K, ...)` of the weight."""
    i = tl.arange(0, BLOCK_N)
    j = tl.arange(0, BLOCK_K)
    if PACKED:
        tile = (first // BLOCK_N).to(tl.int64) * (k // BLOCK_K) + step
        values = tl.load(weight + tile * (BLOCK_N * BLOCK_K) + i[:, None] * BLOCK_K + j[None, :])
    else:
        output = first + i
        column = step * BLOCK_K + j
        address = weight + output.to(tl.int64)[:, None] * k + column[None, :]
        if EVEN_N and EVEN_K:
            values = tl.load(address)
        else:
            values = tl.load(address, mask=(output < limit)[:, None] & (column < k)[None, :], other=0.0)
    return values


@jit
def _multiply(
    x: tl.tensor, w: tl.tensor, accumulator: tl.tensor, WEIGHT_FIRST: tl.constexpr, PRECISION: tl.constexpr
) -> tl.tensor:
    if WEIGHT_FIRST:
        accumulator = tl.dot(w, tl.trans(x), acc=accumulator, input_precision=PRECISION)
    else:
        accumulator = tl.dot(x, tl.trans(w), acc=accumulator, input_precision=PRECISION)
    return accumulator


@jit
def _skinny_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    partial: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    X_STRIDE: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr,
    PACKED: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SILU: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    first = tl.program_id(0) * BLOCK_N
    pid_k = tl.program_id(1)
    r = tl.arange(0, BLOCK_R)
    if WEIGHT_FIRST:
        accumulator = tl.zeros([BLOCK_N, BLOCK_R], dtype=tl.float32)
        up_accumulator = tl.zeros([BLOCK_N, BLOCK_R], dtype=tl.float32)
    else:
        accumulator = tl.zeros([BLOCK_R, BLOCK_N], dtype=tl.float32)
        up_accumulator = tl.zeros([BLOCK_R, BLOCK_N], dtype=tl.float32)
    inputs_ready(OVERLAP)
    let_next_start(OVERLAP)
    steps = tl.cdiv(k, BLOCK_K)
    share = tl.cdiv(steps, SPLIT_K)
    for step in tl.range(pid_k * share, tl.minimum((pid_k + 1) * share, steps)):
        column = step * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = (r < rows)[:, None]
        if not EVEN_K:
            inside = inside & (column < k)[None, :]
        values = tl.load(x + r[:, None] * X_STRIDE + column[None, :], mask=inside, other=0.0)
        w = _weight_tile(weight, first, step, n, k, BLOCK_N, BLOCK_K, EVEN_N, EVEN_K, PACKED)
        accumulator = _multiply(values, w, accumulator, WEIGHT_FIRST, PRECISION)
        if SILU:
            w = _weight_tile(weight, n + first, step, 2 * n, k, BLOCK_N, BLOCK_K, EVEN_N, EVEN_K, PACKED)
            up_accumulator = _multiply(values, w, up_accumulator, WEIGHT_FIRST, PRECISION)
    if WEIGHT_FIRST:
        accumulator = tl.trans(accumulator)
        up_accumulator = tl.trans(up_accumulator)
    output = first + tl.arange(0, BLOCK_N)
    mask = (r < rows)[:, None] & (output < n)[None, :]
    place = r[:, None] * n + output[None, :]
    if SILU:
        accumulator = accumulator / (1.0 + tl.exp(-accumulator)) * up_accumulator
    if SPLIT_K > 1:
        tl.store(partial + pid_k * rows * n + place, accumulator, mask=mask)
    else:
        if BIAS:
            accumulator += tl.load(bias + output, mask=output < n, other=0.0).to(tl.float32)[None, :]
        if RESIDUAL:
            accumulator += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + place, accumulator.to(out.dtype.element_ty), mask=mask)


@jit
def _add_parts_kernel(
    partial: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    SPLIT_K: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    inputs_ready(OVERLAP)
    let_next_start(OVERLAP)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for part in tl.static_range(SPLIT_K):
        total += tl.load(partial + part * size + place, mask=mask, other=0.0)
    if BIAS:
        total += tl.load(bias + place % n, mask=mask, other=0.0).to(tl.float32)
    if RESIDUAL:
        total += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)


_launch = Launcher(_skinny_kernel)
_launch_parts = Launcher(_add_parts_kernel)


def skinny_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    silu: bool = False,
    config: SkinnyConfig | None = None,
) -> torch.Tensor:
    """`x @ weight.T` for 1 to 64 rows, float32 accumulation, rounded once; new `[rows, n]` in x's dtype.

    x: `[rows, k]`, rows may be strided. weight: dense `[n, k]`, or `[2n, k]` with `silu`, which gives
    `silu(gate) * up` of the two halves; or the same packed, whose tile then replaces the config's. bias:
    `[n]`, not with `silu`. residual: `[rows, n]`, added. `silu` does not go with a split of k.
    """
    chosen = config or SkinnyConfig()
    packed = weight.dim() == 4
    if packed:
        if not weight.is_contiguous():
            raise KernelArgumentError("skinny_gemm: a packed weight must be dense")
        across, down, block_n, block_k = weight.shape
        matrix = weight.view(across * block_n, down * block_k)  # of the right shape; its numbers are not used
    else:
        matrix, block_n, block_k = weight, chosen.block_n, chosen.block_k
    n, k = check_linear(x, matrix, bias, residual, None, silu, most_rows=MOST_ROWS)
    if silu and (chosen.split_k > 1 or (packed and n % block_n)):
        raise KernelArgumentError(
            "skinny_gemm: silu needs split_k=1, and packed tiles that do not straddle the halves"
        )
    rows = x.shape[0]
    out = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    partial = None
    if chosen.split_k > 1:
        partial = torch.empty((chosen.split_k, rows, n), dtype=torch.float32, device=x.device)
    _launch(
        (ceil_div(n, block_n), chosen.split_k, 1),
        (x, weight, bias, residual, partial, out, rows, n, k),
        (
            x.stride(0), max(16, next_power_of_2(rows)), block_n, block_k, chosen.split_k, n % block_n == 0,
            k % block_k == 0, packed, chosen.weight_first, bias is not None, residual is not None, silu,
            dot_precision(x.dtype),
        ),
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
    )  # fmt: skip
    if partial is not None:
        size = rows * n
        _launch_parts(
            (ceil_div(size, 1024), 1, 1),
            (partial, bias, residual, out, n, size),
            (chosen.split_k, bias is not None, residual is not None, 1024),
        )
    return out
