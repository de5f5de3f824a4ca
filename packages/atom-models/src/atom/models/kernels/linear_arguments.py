"""What every small-batch product takes, checked in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom.models.kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    import torch


def check_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    silu: bool,
    *,
    most_rows: int,
) -> tuple[int, int]:
    """`(n, k)` of the product, or an error that names the argument at fault."""
    rows, k = x.shape
    n = weight.shape[0] // 2 if silu else weight.shape[0]
    if weight.shape[1] != k or not weight.is_contiguous() or x.stride(1) != 1:
        raise KernelArgumentError(
            f"linear: weight must be dense [n, {k}] for x {tuple(x.shape)}, got {tuple(weight.shape)} "
            f"with strides {weight.stride()}"
        )
    if not 1 <= rows <= most_rows:
        raise KernelArgumentError(f"linear: this kernel takes 1 to {most_rows} rows, got {rows}")
    if silu and (weight.shape[0] % 2 or bias is not None):
        raise KernelArgumentError("linear: silu wants a weight of gate and up halves and takes no bias")
    if bias is not None and bias.shape != (n,):
        raise KernelArgumentError(f"linear: bias must be [{n}], got {tuple(bias.shape)}")
    if residual is not None and (residual.shape != (rows, n) or not residual.is_contiguous()):
        raise KernelArgumentError(
            f"linear: residual must be dense [{rows}, {n}], got {tuple(residual.shape)}"
        )
    if norm_weight is not None and norm_weight.shape != (k,):
        raise KernelArgumentError(f"linear: norm_weight must be [{k}], got {tuple(norm_weight.shape)}")
    return n, k
