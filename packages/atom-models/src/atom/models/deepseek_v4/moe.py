"""Mixture of experts: routed ones and one that every token visits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from atom.models.deepseek_v4.router import HashRouter, Router, TopKRouter
from atom.models.layers.experts import Experts
from atom.models.layers.linear import GateUpLinear, Linear

if TYPE_CHECKING:
    from atom.models.deepseek_v4.config import DeepseekV4Config


def clipped_swiglu(gate_up: torch.Tensor, limit: float) -> torch.Tensor:
    """`silu(min(gate, limit)) * clamp(up, -limit, limit)` of `[..., 2n]`, gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate.clamp(max=limit)) * up.clamp(min=-limit, max=limit)


class SharedExpert(nn.Module):
    """The expert of every token."""

    def __init__(self, config: DeepseekV4Config, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.moe_intermediate_size
        self.limit = config.swiglu_limit
        self.gate_up_proj = GateUpLinear(hidden, width, dtype=dtype, device=device)
        self.down_proj = Linear(width, hidden, dtype=dtype, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, hidden]` of `[rows, hidden]`."""
        return self.down_proj(clipped_swiglu(self.gate_up_proj(x), self.limit))  # type: ignore[no-any-return]


class MoE(nn.Module):
    """The feed-forward sub-layer."""

    def __init__(
        self, config: DeepseekV4Config, *, layer_id: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        router = HashRouter if config.hash_layers[layer_id] else TopKRouter
        self.gate: Router = router(config, device=device)
        self.experts = Experts(
            config.n_routed_experts,
            config.hidden_size,
            config.moe_intermediate_size,
            swiglu_limit=config.swiglu_limit,
            dtype=dtype,
            device=device,
        )
        self.shared_experts = SharedExpert(config, dtype=dtype, device=device)

    def forward(self, x: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        """`[rows, hidden]` of normed `[rows, hidden]` and their tokens `[rows]`."""
        expert_ids, weights = self.gate(x, input_ids)
        return self.experts(x, expert_ids, weights) + self.shared_experts(x)  # type: ignore[no-any-return]
