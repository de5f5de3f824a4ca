"""SiLU of the gate half times the up half of a fused gate-up projection."""
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
def _silu_mul_kernel(
    gate_up: tl.tensor,
    out: tl.tensor,
    STRIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < WIDTH
    inputs_ready(OVERLAP)
    let_next_start(OVERLAP)
    gate = tl.load(gate_up + row * STRIDE + column, mask=live, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * STRIDE + WIDTH + column, mask=live, other=0.0).to(tl.float32)
    product = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * WIDTH + column, product.to(out.dtype.element_ty), mask=live)


_launch = Launcher(_silu_mul_kernel)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate_up[:, :n]) * gate_up[:, n:]` of `[rows, 2n]`, in float32, rounded once; new `[rows, n]`."""
    rows, both = gate_up.shape
    if both % 2 or gate_up.stride(1) != 1:
        raise KernelArgumentError(
            f"silu_mul: gate_up must be [rows, 2n] with dense rows, got {tuple(gate_up.shape)} "
            f"with strides {gate_up.stride()}"
        )
    width = both // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    block = min(1024, next_power_of_2(width))
    _launch((rows, ceil_div(width, block), 1), (gate_up, out), (gate_up.stride(0), width, block))
    return out
