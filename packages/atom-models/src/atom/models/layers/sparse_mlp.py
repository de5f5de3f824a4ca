"""A mixture of experts in an MLP's place."""

from __future__ import annotations

import torch
from torch import nn

from atom.models.layers.experts import Experts
from atom.models.layers.linear import Linear
from atom.models.layers.router import softmax_top_k


class SparseMLP(nn.Module):
    """Each row goes to the `k` experts that a linear router likes best."""

    def __init__(
        self,
        num_experts: int,
        k: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        renormalise: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`renormalise`: a row's weights add up to 1."""
        super().__init__()
        self.k, self.renormalise = k, renormalise
        self.gate = Linear(hidden_size, num_experts, dtype=dtype, device=device)
        self.experts = Experts(num_experts, hidden_size, intermediate_size, dtype=dtype, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, hidden]` of `[rows, hidden]`."""
        ids, weights = softmax_top_k(self.gate(x), self.k, renormalise=self.renormalise)
        return self.experts(x, ids, weights)  # type: ignore[no-any-return]
