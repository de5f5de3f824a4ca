"""Manifold-constrained hyper-connections: several residual streams, mixed by a doubly stochastic matrix.

Everything here is float32; only what goes to a sub-layer or to the next streams is rounded, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from atom.models.deepseek_v4.config import DeepseekV4Config


class HyperConnection(nn.Module):
    """What a sub-layer reads of the streams, and how its result and the streams make the next ones."""

    def __init__(self, config: DeepseekV4Config, *, device: torch.device) -> None:
        super().__init__()
        n = self.streams = config.hc_mult
        self.iterations, self.eps, self.norm_eps = (
            config.hc_sinkhorn_iters,
            config.hc_eps,
            config.rms_norm_eps,
        )
        self.fn = _parameter(n * (2 + n), n * config.hidden_size, device=device)
        self.base = _parameter(n * (2 + n), device=device)
        self.scale = _parameter(3, device=device)

    def forward(self, streams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of `[rows, streams, hidden]`: the sub-layer's input `[rows, hidden]`, and for `expand` float32
        `post` `[rows, streams]` and `comb` `[rows, streams, streams]`."""
        n = self.streams
        weights = _mixing_weights(streams, self.fn, self.norm_eps)
        pre_w, post_w, comb_w = torch.split(weights, [n, n, n * n], dim=-1)
        pre_b, post_b, comb_b = torch.split(self.base, [n, n, n * n])
        pre = torch.sigmoid(pre_w * self.scale[0] + pre_b) + self.eps
        post = 2 * torch.sigmoid(post_w * self.scale[1] + post_b)
        comb = (comb_w * self.scale[2] + comb_b).view(-1, n, n).softmax(-1) + self.eps
        return _collapse(pre, streams), post, self._doubly_stochastic(comb)

    def expand(
        self, y: torch.Tensor, streams: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
    ) -> torch.Tensor:
        """The next streams: stream k is `post[k] * y + sum over j of comb[j, k] * stream j`."""
        mixed = torch.bmm(comb.transpose(1, 2), streams.float())
        return (post.unsqueeze(-1) * y.float().unsqueeze(1) + mixed).to(streams.dtype)

    def _doubly_stochastic(self, comb: torch.Tensor) -> torch.Tensor:
        """Sinkhorn and Knopp: columns and rows are divided by their sums in turn, columns first and last."""
        comb = comb / (comb.sum(1, keepdim=True) + self.eps)
        for _ in range(self.iterations - 1):
            comb = comb / (comb.sum(2, keepdim=True) + self.eps)
            comb = comb / (comb.sum(1, keepdim=True) + self.eps)
        return comb


class HyperHead(nn.Module):
    """The streams of the last layer as one."""

    def __init__(self, config: DeepseekV4Config, *, device: torch.device) -> None:
        super().__init__()
        n = config.hc_mult
        self.eps, self.norm_eps = config.hc_eps, config.rms_norm_eps
        self.fn = _parameter(n, n * config.hidden_size, device=device)
        self.base = _parameter(n, device=device)
        self.scale = _parameter(1, device=device)

    def forward(self, streams: torch.Tensor) -> torch.Tensor:
        """`[rows, hidden]` of `[rows, streams, hidden]`."""
        weights = _mixing_weights(streams, self.fn, self.norm_eps)
        return _collapse(torch.sigmoid(weights * self.scale + self.base) + self.eps, streams)


def _mixing_weights(streams: torch.Tensor, fn: torch.Tensor, eps: float) -> torch.Tensor:
    """`fn` of the normalised streams, laid end to end; the norm has one statistic for all of them."""
    flat = streams.flatten(1).float()
    return F.linear(flat, fn) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)


def _collapse(pre: torch.Tensor, streams: torch.Tensor) -> torch.Tensor:
    return (pre.unsqueeze(-1) * streams.float()).sum(1).to(streams.dtype)


def _parameter(*shape: int, device: torch.device) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=torch.float32, device=device), requires_grad=False)
