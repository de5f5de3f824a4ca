"""Products of float32 inputs with weights kept in float16, on x86 CPUs.

Half the bytes of float32 to read for each token, at memory speed already with one row. Inputs, sums and
results stay float32; a weight is rounded to 11 bits, and a checkpoint in float16, bfloat16 or blocks
has no more of them.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from atom.models.layers.prepacked import PackedProduct

logger = logging.getLogger(__name__)

_LARGEST = torch.finfo(torch.float16).max


class HalfProduct(PackedProduct):
    """A float32 weight `[out, in]` in FBGEMM's float16 layout."""

    name = "float16 weights"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """
        Raises:
            Exception: this build of torch has no such layout; whatever torch raises.
        """
        super().__init__(weight.shape[0])
        self._multiply: Any = torch.ops.quantized.linear_dynamic_fp16.default
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.detach().contiguous(), bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 0:
            return x.new_empty((0, self.out_features))
        return self._multiply(x, self._packed)  # type: ignore[no-any-return]


def half_product(weight: torch.Tensor, bias: torch.Tensor | None) -> HalfProduct | None:
    """The product with `weight`; None where torch cannot make it, or a value is too large for float16."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    low, high = torch.aminmax(weight)
    if not (float(low) >= -_LARGEST and float(high) <= _LARGEST):
        return None
    try:
        product = HalfProduct(weight, bias)
        product(weight.new_zeros((1, weight.shape[1])))
    except (AttributeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        logger.info("weights stay float32: torch %s packs no float16 here (%s)", torch.__version__, reason)
        return None
    return product
