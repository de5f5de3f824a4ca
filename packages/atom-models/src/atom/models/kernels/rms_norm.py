"""RMS norm, alone or fused with the residual add before it.

One pass over memory: a row is read once, kept in registers, reduced and written. The sum of the residual add
is rounded to the residual's dtype before it is normalised, so fused and separate calls agree.
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


@jit
def _rms_norm_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    residual_out: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    X_STRIDE: tl.constexpr,
    INNER: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    live = (row < rows)[:, None] & (column < HIDDEN)[None, :]
    # row i is vector i % INNER of outer row i // INNER: q and k heads inside a fused QKV row
    source = (row // INNER) * X_STRIDE + (row % INNER) * HIDDEN
    dense = row[:, None] * HIDDEN + column[None, :]
    gain = tl.load(weight + column, mask=column < HIDDEN, other=0.0).to(tl.float32)
    inputs_ready(OVERLAP)
    let_next_start(OVERLAP)
    values = tl.load(x + source[:, None] + column[None, :], mask=live, other=0.0).to(tl.float32)
    if ADD:
        values += tl.load(residual + dense, mask=live, other=0.0).to(tl.float32)
        rounded = values.to(residual_out.dtype.element_ty)
        tl.store(residual_out + dense, rounded, mask=live)
        values = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=1) / HIDDEN + eps)
    tl.store(out + dense, (values * scale[:, None] * gain[None, :]).to(out.dtype.element_ty), mask=live)


_launch = Launcher(_rms_norm_kernel)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x²) + eps) * weight` over the last dimension, computed in float32, rounded once.

    `x` is `[rows, hidden]` or `[rows, heads, head_dim]`; its rows may be strided (a slice of a fused
    projection), the rest must be dense. Returns a dense tensor of the same shape and dtype.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _run(x, None, weight, eps, out, None)
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`(rms_norm(x + residual), x + residual)`, both new and dense; both inputs are `[rows, hidden]`."""
    if residual.shape != x.shape or not residual.is_contiguous():
        raise KernelArgumentError(
            f"add_rms_norm: residual {tuple(residual.shape)} must be dense and shaped like x {tuple(x.shape)}"
        )
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    residual_out = torch.empty(x.shape, dtype=residual.dtype, device=x.device)
    _run(x, residual, weight, eps, out, residual_out)
    return out, residual_out


def _run(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    residual_out: torch.Tensor | None,
) -> None:
    hidden = x.shape[-1]
    inner = x.shape[1] if x.dim() == 3 else 1
    if x.dim() not in (2, 3) or x.stride(-1) != 1 or (x.dim() == 3 and inner > 1 and x.stride(1) != hidden):
        raise KernelArgumentError(
            f"rms_norm: x must be [rows, hidden] or [rows, heads, dim] with dense rows, got {tuple(x.shape)} "
            f"with strides {x.stride()}"
        )
    if weight.shape != (hidden,):
        raise KernelArgumentError(f"rms_norm: weight must be [{hidden}], got {tuple(weight.shape)}")
    rows = x.shape[0] * inner
    block = next_power_of_2(hidden)
    per_program = max(1, 1024 // block)  # short rows (head norms) share a program
    warps = 4 if block <= 2048 else 8
    _launch(
        (ceil_div(rows, per_program), 1, 1),
        (x, residual, weight, out, residual_out, rows, eps),
        (x.stride(0), inner, hidden, block, per_program, residual is not None),
        num_warps=warps,
    )
