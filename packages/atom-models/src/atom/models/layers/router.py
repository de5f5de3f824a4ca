"""Which experts a row visits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def softmax_top_k(logits: torch.Tensor, k: int, *, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids int64 and weights float32, both `[rows, k]`, of router logits `[rows, experts]`.

    Weights are the largest of the softmax over all experts, with `renormalise` divided by their sum
    (arXiv 2401.04088, 2505.09388).
    """
    weights, ids = logits.float().softmax(-1).topk(k, dim=-1)
    return ids, weights / weights.sum(-1, keepdim=True) if renormalise else weights
