"""The gated MLP of the Llama family."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from atom.models.cpu import ops
from atom.models.layers.linear import GateUpLinear, Linear


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate_up[:, :n]) * gate_up[:, n:]` of `[rows, 2n]`."""
    if ops.has_kernel(gate_up):
        return ops.silu_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


class GatedMLP(nn.Module):
    """`down(silu(gate(x)) * up(x))` (SwiGLU, arXiv 2002.05202)."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        bias: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.gate_up_proj = GateUpLinear(
            hidden_size, intermediate_size, bias=bias, dtype=dtype, device=device
        )
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias, dtype=dtype, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, hidden]` of `[rows, hidden]`."""
        return self.down_proj(silu_mul(self.gate_up_proj(x)))  # type: ignore[no-any-return]
