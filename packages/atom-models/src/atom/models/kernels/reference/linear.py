"""A linear layer's product with the work around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F

from atom.models.kernels.reference.rms_norm import rms_norm
from atom.models.kernels.reference.silu_mul import silu_mul

if TYPE_CHECKING:
    import torch


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    tiles: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    norm_weight: torch.Tensor | None = None,
    eps: float = 0.0,
    silu: bool = False,
) -> torch.Tensor:
    """`x @ weight.T` of `[rows, k]` and `[n, k]`, as separate operations in the tensors' own dtype.

    Around it, in this order: `rms_norm(x, norm_weight, eps)` before; SiLU of the first half of the outputs
    times the second (`silu`), `+ bias`, `+ residual` after. `tiles`, the packed weight, is not used.
    """
    if norm_weight is not None:
        x = rms_norm(x, norm_weight, eps)
    product = F.linear(x, weight)
    if silu:
        product = silu_mul(product)
    if bias is not None:
        product = product + bias
    return product if residual is None else product + residual
