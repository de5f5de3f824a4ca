"""Token ids to hidden states, and hidden states to logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from atom.models.layers.linear import Linear


class TokenEmbedding(nn.Module):
    """A row of the table for each id."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(vocab_size, hidden_size, dtype=dtype, device=device), requires_grad=False
        )

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """`[rows, hidden]` of int64 ids `[rows]`."""
        return F.embedding(input_ids, self.weight)


class LMHead(Linear):
    """Logits of the rows asked for; the largest product of a small model, so callers pass only those."""

    def tie(self, embedding: TokenEmbedding) -> None:
        """Use the embedding's table as weight: one parameter, two names."""
        self.weight = embedding.weight

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Float32 `[n, vocab]` of hidden states `[n, hidden]`."""
        return super().forward(hidden_states).float()
