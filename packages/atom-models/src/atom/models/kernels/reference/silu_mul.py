"""SiLU of the gate half times the up half of a fused gate-up projection."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom.models.kernels.reference.precision import widen


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate_up[:, :n]) * gate_up[:, n:]` of a `[rows, 2n]` tensor, in float32, rounded once."""
    gate, up = widen(gate_up).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)
