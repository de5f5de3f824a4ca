"""Rotary embedding of DeepSeek-V4: neighbouring dimensions turn together, the last ones of a vector only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from atom.models.layers.rope_scaling import rotary_frequencies

if TYPE_CHECKING:
    from atom.models.layers.rope_scaling import Scaling
    from atom.models.layers.rotary import CosSin


class InterleavedRotary(nn.Module):
    """Angles from positions, float32. Contexts reach a million tokens, for which tables would be large."""

    def __init__(
        self, rope_dim: int, *, theta: float, scaling: Scaling | None, max_position: int, device: torch.device
    ) -> None:
        """
        Raises:
            LayerArgumentError: see `rotary_frequencies`.
        """
        super().__init__()
        frequencies, self.factor = rotary_frequencies(rope_dim, theta, scaling, max_position=max_position)
        self.register_buffer("frequencies", frequencies.to(device), persistent=False)
        self.frequencies: torch.Tensor

    def forward(self, positions: torch.Tensor) -> CosSin:
        """Cosine and sine, float32 `[n, rope_dim / 2]`, of int64 positions `[n]`."""
        angles = positions.float().unsqueeze(-1) * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        return (cos, sin) if self.factor == 1.0 else (cos * self.factor, sin * self.factor)


def rotate_trailing(x: torch.Tensor, cos_sin: CosSin, *, backwards: bool = False) -> torch.Tensor:
    """`x` with its last dimensions turned in pairs `(2p, 2p + 1)`; new, same dtype, one rounding.

    `x` is `[n, width]` or `[n, heads, width]`, `cos_sin` as `InterleavedRotary.forward` gives it. `backwards`
    turns by the negative angle, as attention's output needs whose values were turned with the keys.
    """
    cos, sin = cos_sin
    if x.dim() == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if backwards:
        sin = -sin
    turning = 2 * cos.shape[-1]
    kept, pairs = x[..., :-turning], x[..., -turning:].float()
    even, odd = pairs[..., 0::2], pairs[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    return torch.cat((kept, turned.to(x.dtype)), dim=-1)
