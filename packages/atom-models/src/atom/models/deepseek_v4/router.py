"""Which experts a token goes to, and with what weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from atom.models.deepseek_v4.config import DeepseekV4Config


class Router(nn.Module):
    """Scores `sqrt(softplus(x @ weight.T))`, float32; the chosen ones are divided by their sum and scaled."""

    def __init__(self, config: DeepseekV4Config, *, device: torch.device) -> None:
        super().__init__()
        self.top_k, self.scaling = config.num_experts_per_tok, config.routed_scaling_factor
        self.weight = nn.Parameter(
            torch.empty(config.n_routed_experts, config.hidden_size, dtype=torch.float32, device=device),
            requires_grad=False,
        )

    def forward(self, x: torch.Tensor, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Expert ids int64 and weights float32, both `[rows, top_k]`, of rows `[rows, hidden]` and their
        tokens `[rows]`."""
        scores = F.softplus(F.linear(x.float(), self.weight)).sqrt()
        ids = self.choose(scores, input_ids)
        chosen = scores.gather(1, ids)
        return ids, chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * self.scaling

    def choose(self, scores: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        """Expert ids int64 `[rows, top_k]`."""
        raise NotImplementedError


class TopKRouter(Router):
    """The best scores once a correction is added; the correction chooses and weighs nothing."""

    def __init__(self, config: DeepseekV4Config, *, device: torch.device) -> None:
        super().__init__(config, device=device)
        self.e_score_correction_bias = nn.Parameter(
            torch.empty(config.n_routed_experts, dtype=torch.float32, device=device), requires_grad=False
        )

    def choose(self, scores: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        return (scores + self.e_score_correction_bias).topk(self.top_k, dim=-1).indices


class HashRouter(Router):
    """The experts a table names for the token; scores only weigh them."""

    def __init__(self, config: DeepseekV4Config, *, device: torch.device) -> None:
        super().__init__(config, device=device)
        self.tid2eid = nn.Parameter(
            torch.empty(config.vocab_size, config.num_experts_per_tok, dtype=torch.int64, device=device),
            requires_grad=False,
        )

    def choose(self, scores: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        return self.tid2eid[input_ids]
