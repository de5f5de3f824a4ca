"""The precision the twins compute in: float32 for what models use, float64 (as a test oracle) for float64."""

from __future__ import annotations

import torch


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` itself in float64, anything else in float32."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
