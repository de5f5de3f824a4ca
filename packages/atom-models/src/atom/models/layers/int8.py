"""Products with weights rounded to 8 bits, one scale an output feature.

A quarter of float32's memory, and fewer bytes to read for each token. Answers change: of 20 greedy answers by
SmolLM2-135M, 12 differed from float32's within 16 tokens, which is why nothing uses it unless asked to.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from atom.models.layers.prepacked import PackedProduct

_MOST_ROWS = 16
"""torch's kernel costs as much for each further row; above this, widening the weight first is cheaper."""


class Int8Product(PackedProduct):
    """A weight `[out, in]` in int8. Few rows on a CPU go to torch's kernel, which multiplies in bfloat16."""

    name = "int8"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight.shape[0])
        wide = weight.detach().float()
        # Rounded first, since the kernel takes it in bfloat16: both ways then have the same weights.
        scale = (wide.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / 127).bfloat16()
        self._weight = (wide / scale.float().unsqueeze(1)).round_().clamp_(-127, 127).to(torch.int8)
        self._scale = scale
        self._bias = None if bias is None else bias.detach()
        self._multiply = _kernel(self._weight, scale)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._multiply is not None and 0 < x.shape[0] <= _MOST_ROWS:
            product: torch.Tensor = self._multiply(x.bfloat16(), self._weight, self._scale).to(x.dtype)
        else:
            product = F.linear(x, self._weight.to(x.dtype)) * self._scale.to(x.dtype)
        return product if self._bias is None else product + self._bias


def _kernel(weight: torch.Tensor, scale: torch.Tensor) -> Any | None:
    """torch's CPU kernel for int8 weights, None where this build does not have it."""
    if weight.device.type != "cpu":
        return None
    try:
        multiply = torch.ops.aten._weight_int8pack_mm.default
        multiply(torch.zeros((1, weight.shape[1]), dtype=torch.bfloat16), weight, scale)
    except (AttributeError, RuntimeError):
        return None
    return multiply
