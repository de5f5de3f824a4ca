"""Matrix-vector product with the work around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from atom.models.kernels.reference.precision import widen

if TYPE_CHECKING:
    from atom.models.kernels.gemv import GemvConfig


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
    """`x @ weight.T` with an optional RMS norm before, SiLU-mul, bias and residual after; float32 inside.

    `config` concerns the device kernel and is not used.
    """
    values = widen(x)
    if norm_weight is not None:
        values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + eps) * widen(norm_weight)
    result = values @ widen(weight).t()
    if silu:
        gate, up = result.chunk(2, dim=-1)
        result = F.silu(gate) * up
    if bias is not None:
        result = result + widen(bias)
    if residual is not None:
        result = result + widen(residual)
    return result.to(x.dtype)
