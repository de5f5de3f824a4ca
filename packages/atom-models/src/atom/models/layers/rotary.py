"""Rotary position embedding: pairs of dimensions turned by an angle that grows with the position."""

from __future__ import annotations

import torch
from torch import nn

from atom.models.cpu import ops
from atom.models.layers.rope_scaling import Scaling, rotary_frequencies

CosSin = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of a step's rows."""


class RotaryEmbedding(nn.Module):
    """Turns query and key heads by their position (arXiv 2104.09864), a head's first half against its second.

    Tables hold cosine and sine in float32 for every position, the sine of the first half negated, so that a
    rotation is two products and one swap of halves. One gather a step serves all layers.
    """

    def __init__(
        self,
        head_dim: int,
        *,
        max_position: int,
        theta: float,
        scaling: Scaling | None = None,
        rotary_dim: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        """
        Args:
            head_dim: width of a head.
            max_position: positions the tables have, the checkpoint's context in tokens.
            theta: base of the frequencies.
            scaling: a `rope_scaling` object, None for plain positions.
            rotary_dim: leading dimensions of a head that turn; all when left out.
            device: where the tables lie.

        Raises:
            LayerArgumentError: see `rotary_frequencies`.
        """
        super().__init__()
        self.head_dim = head_dim
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        frequencies, factor = rotary_frequencies(self.rotary_dim, theta, scaling, max_position=max_position)
        angles = torch.outer(torch.arange(max_position, dtype=torch.float32), frequencies)
        cos, sin = angles.cos() * factor, angles.sin() * factor
        self.register_buffer("cos", torch.cat((cos, cos), -1).unsqueeze(1).to(device), persistent=False)
        self.register_buffer("sin", torch.cat((-sin, sin), -1).unsqueeze(1).to(device), persistent=False)
        self.cos: torch.Tensor
        self.sin: torch.Tensor

    def forward(self, positions: torch.Tensor) -> CosSin:
        """Cosine and sine of each row, float32 `[rows, 1, rotary_dim]`, of int64 positions `[rows]`."""
        return self.cos.index_select(0, positions), self.sin.index_select(0, positions)

    def rotate(self, heads: torch.Tensor, cos_sin: CosSin) -> torch.Tensor:
        """`heads` `[rows, heads, head_dim]` turned by `cos_sin` from `forward`; new, same dtype.

        The products are taken in float32 and rounded once.
        """
        cos, sin = cos_sin
        if ops.has_kernel(heads):
            return ops.rotate(heads, cos, sin)
        turning = heads if self.rotary_dim == self.head_dim else heads[..., : self.rotary_dim]
        wide = turning.float()
        swapped = wide.roll(self.rotary_dim // 2, -1)
        turned = torch.addcmul(wide * cos, swapped, sin).to(heads.dtype)
        if turning is heads:
            return turned
        return torch.cat((turned, heads[..., self.rotary_dim :]), dim=-1)
