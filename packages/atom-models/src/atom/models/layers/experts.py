"""Routed experts: gated MLPs of which each row visits a few."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from atom.models.layers.prepacked import is_traced

if TYPE_CHECKING:
    from collections.abc import Iterator

_GATHERED_BYTES = 1 << 28
"""Weights that are gathered at once; more rows are done in turns."""
_FEW_ROWS = 512
"""Up to so many rows, which may be a recorded step's, shapes follow the rows alone, whoever runs them."""


class Experts(nn.Module):
    """`down(silu(gate(x)) * up(x))` by the experts a row is sent to, weighted and added.

    Shapes follow the number of rows, so that a step can be recorded: each row's weights are gathered. Many
    rows on a CPU, which no graph is recorded of, go expert by expert instead.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        swiglu_limit: float | None = None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`swiglu_limit` clips the gate from above and `up` from both sides before they are multiplied."""
        super().__init__()
        self.limit = swiglu_limit
        gate_up = torch.empty(num_experts, 2 * intermediate_size, hidden_size, dtype=dtype, device=device)
        down = torch.empty(num_experts, hidden_size, intermediate_size, dtype=dtype, device=device)
        self.gate_up_proj = nn.Parameter(gate_up, requires_grad=False)
        """`[experts, 2 * intermediate, hidden]`, an expert's gate rows first."""
        self.down_proj = nn.Parameter(down, requires_grad=False)
        """`[experts, hidden, intermediate]`."""

    def forward(self, x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """`[rows, hidden]` of `[rows, hidden]`; int64 ids and weights are `[rows, k]`."""
        rows = x.shape[0]
        if rows > _FEW_ROWS and x.device.type == "cpu" and not is_traced():
            return self._by_expert(x, expert_ids, weights)
        per_row = expert_ids.shape[1] * (self.gate_up_proj[0].nbytes + self.down_proj[0].nbytes)
        at_once = max(1, _GATHERED_BYTES // per_row)
        if torch.compiler.is_compiling() or rows <= at_once:
            return self._gathered(x, expert_ids, weights)
        parts = [slice(begin, begin + at_once) for begin in range(0, rows, at_once)]
        return torch.cat([self._gathered(x[part], expert_ids[part], weights[part]) for part in parts])

    def parts(self) -> Iterator[tuple[int, str, torch.Tensor]]:
        """Number, "gate", "up" or "down", and the matrix to load into, for each expert."""
        for number, (gate_up, down) in enumerate(zip(self.gate_up_proj, self.down_proj, strict=True)):
            gate, up = gate_up.chunk(2)
            yield number, "gate", gate
            yield number, "up", up
            yield number, "down", down

    def _activated(self, gate_up: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        if self.limit is not None:
            gate, up = gate.clamp(max=self.limit), up.clamp(min=-self.limit, max=self.limit)
        return F.silu(gate) * up * weights.unsqueeze(-1).to(up.dtype)

    def _gathered(self, x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        gate_up = torch.einsum("nd,nkid->nki", x, self.gate_up_proj[expert_ids])
        return torch.einsum("nki,nkdi->nd", self._activated(gate_up, weights), self.down_proj[expert_ids])

    def _by_expert(self, x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x)
        for number in sorted(set(expert_ids.reshape(-1).tolist())):
            rows, places = (expert_ids == number).nonzero(as_tuple=True)
            gate_up = F.linear(x[rows], self.gate_up_proj[number])
            visited = F.linear(self._activated(gate_up, weights[rows, places]), self.down_proj[number])
            total.index_add_(0, rows, visited)
        return total
