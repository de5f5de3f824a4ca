"""RMS norm, alone or with the residual add before it."""

from __future__ import annotations

import torch

from atom.models.kernels.reference.precision import widen


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x²) + eps) * weight` over the last dimension, computed in float32, rounded once."""
    wide = widen(x)
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale * widen(weight)).to(x.dtype).contiguous()


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`(rms_norm(x + residual), x + residual)`; the sum is rounded to its dtype before the norm."""
    total = (widen(x) + widen(residual)).to(residual.dtype)
    return rms_norm(total, weight, eps).to(x.dtype), total
