"""A linear layer whose groups of inputs have outputs of their own."""

from __future__ import annotations

import torch
from torch import nn


class GroupedLinear(nn.Module):
    """`[rows, groups, in]` to `[rows, groups * out]`, weight `[groups * out, in]`."""

    def __init__(
        self, groups: int, in_features: int, out_features: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`in_features` and `out_features` of one group."""
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(
            torch.empty(groups * out_features, in_features, dtype=dtype, device=device), requires_grad=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.view(self.groups, -1, self.weight.shape[1])
        return torch.bmm(x.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1).flatten(1)
