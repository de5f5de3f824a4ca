"""Matrix product of few rows with the work around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom.models.kernels.packed_weight import unpack
from atom.models.kernels.reference.gemv import gemv

if TYPE_CHECKING:
    import torch

    from atom.models.kernels.skinny_gemm import SkinnyConfig


def skinny_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    silu: bool = False,
    config: SkinnyConfig | None = None,
) -> torch.Tensor:
    """`x @ weight.T` of a plain or packed weight, with optional SiLU-mul, bias and residual after; float32
    inside.

    `config` concerns the device kernel and is not used.
    """
    plain = unpack(weight) if weight.dim() == 4 else weight
    return gemv(x, plain, bias=bias, residual=residual, silu=silu)
