"""Root-mean-square norm."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


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
        # torch has no fused kernel for it on a CPU, where its nine small ones cost more than the arithmetic.
        self._in_four_ops = self.weight.dtype == torch.float32 and self.weight.device.type == "cpu"
        if self._in_four_ops:
            self.register_buffer("_floor", torch.tensor(math.sqrt(hidden_size * eps)), persistent=False)
            self.register_buffer("_zero", torch.tensor(0.0), persistent=False)
        self._root = math.sqrt(hidden_size)
        self._floor: torch.Tensor
        self._zero: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, hidden]` or `[rows, heads, head_dim]` normalised; same shape and dtype."""
        if self._in_four_ops and not torch.compiler.is_compiling():
            # sqrt(n) * x * weight / sqrt(sum(x²) + n * eps)
            length = torch.hypot(torch.linalg.vector_norm(x, 2, -1, True), self._floor)
            return torch.addcdiv(self._zero, x * self.weight, length, value=self._root)
        return F.rms_norm(x, self.shape, self.weight, self.eps)
