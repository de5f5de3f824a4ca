"""Matrix product of few rows with the work around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom.models.kernels.packed_weight import PackedWeight, unpack
from atom.models.kernels.reference.gemv import gemv

if TYPE_CHECKING:
    import torch

    from atom.models.kernels.skinny_gemm import SkinnyConfig


def skinny_gemm(
    x: torch.Tensor,
    weight: torch.Tensor | PackedWeight,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    norm_weight: torch.Tensor | None = None,
    eps: float = 0.0,
    silu: bool = False,
    config: SkinnyConfig | None = None,
) -> torch.Tensor:
    """`x @ weight.T` with an optional RMS norm before, SiLU-mul, bias and residual after; float32 inside.

    `config` concerns the device kernel and is not used.
    """
    plain = unpack(weight) if isinstance(weight, PackedWeight) else weight
    return gemv(x, plain, bias=bias, residual=residual, norm_weight=norm_weight, eps=eps, silu=silu)
