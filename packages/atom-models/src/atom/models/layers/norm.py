"""Root-mean-square norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from atom.models.cpu import ops


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x²) + eps) * weight` over the last dimension (arXiv 1910.07467)."""

    def __init__(
        self,
        hidden_size: int,
        eps: float,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.shape = (hidden_size,)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=dtype, device=device), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, hidden]` or `[rows, heads, head_dim]` normalised; same shape and dtype."""
        if ops.has_kernel(x) and self.weight.dtype is torch.float32:
            return ops.rms_norm(x, self.weight, self.eps)
        return F.rms_norm(x, self.shape, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`x + residual` normalised, and `x + residual`, the next layer's residual; both `[rows, hidden]`."""
        if ops.has_kernel(x) and self.weight.dtype is torch.float32:
            return ops.add_rms_norm(x, residual, self.weight, self.eps)
        total = x + residual
        return F.rms_norm(total, self.shape, self.weight, self.eps), total
