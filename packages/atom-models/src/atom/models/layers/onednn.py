"""Products with a weight that oneDNN has laid out in blocks, on CPUs.

torch's plain linear multiplies a few float32 rows at a third of memory speed. oneDNN's blocked layout, made
once and kept, does at twice that (`benchmarks/bench_cpu_decode.py` has the figures). The values are the same,
summed in another order.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.nn.functional as F

from atom.models.layers.prepacked import PackedProduct

logger = logging.getLogger(__name__)

_FEWEST_ROWS = 4
"""oneDNN takes longer for one, two or three rows than for four (AVX-512), so fewer are padded."""
_NO_SCALARS: list[Any] = []


class OneDnnProduct(PackedProduct):
    """A dense weight `[out, in]` of float32 or bfloat16, in oneDNN's layout."""

    name = "oneDNN blocks"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """
        Raises:
            Exception: this build of torch has no such layout; whatever torch raises.
        """
        super().__init__(weight.shape[0])
        self._multiply: Any = torch.ops.mkldnn._linear_pointwise.default
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
        self._bias = None if bias is None else bias.detach()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        if rows == 0:
            return x.new_empty((0, self.out_features))
        if rows >= _FEWEST_ROWS:
            padded = x
        else:
            missing = _FEWEST_ROWS - rows
            padded = x.expand(_FEWEST_ROWS, -1) if rows == 1 else F.pad(x, (0, 0, 0, missing))
        result: torch.Tensor = self._multiply(padded, self._weight, self._bias, "none", _NO_SCALARS, "")
        return result if padded is x else result[:rows]


def onednn_product(weight: torch.Tensor, bias: torch.Tensor | None) -> OneDnnProduct | None:
    """The product with `weight`; None where it must stay dense: on a GPU, in another dtype, no oneDNN."""
    if weight.device.type != "cpu":
        return None
    try:
        if weight.dtype not in _dtypes():
            return None
        product = OneDnnProduct(weight, bias)
        # Builds for other processors have the operators and refuse at the first call.
        product(weight.new_zeros((1, weight.shape[1])))
    except (AttributeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        logger.info("linear layers stay dense: torch %s packs no weight here (%s)", torch.__version__, reason)
        return None
    return product


def _dtypes() -> tuple[torch.dtype, ...]:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return ()
    # Where the processor has no bfloat16 products, oneDNN would emulate them.
    bfloat16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return (torch.float32, torch.bfloat16) if bfloat16 else (torch.float32,)
