"""Embedding gather from a whole table or one rank's share of it."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def embedding(ids: torch.Tensor, table: torch.Tensor, vocab_start: int = 0) -> torch.Tensor:
    """Rows `ids - vocab_start` of `table` `[vocab, hidden]`; an id outside the table gives a row of zeros."""
    entry = ids - vocab_start
    held = (entry >= 0) & (entry < table.shape[0])
    rows = F.embedding(entry.clamp(0, table.shape[0] - 1), table)
    return rows.masked_fill(~held.unsqueeze(-1), 0)
