"""Which form a linear layer's weight is kept in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from atom.models.layers.int8 import Int8Product
from atom.models.layers.onednn import onednn_product
from atom.models.layers.panels import panel_product

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atom.config import ModelConfig
    from atom.models.checkpoint import TensorInfo
    from atom.models.layers.prepacked import PackedProduct

WeightForm = Literal["exact", "half", "int8"]
"""`exact` keeps every value, `half` rounds to float16, `int8` to 8 bits, one scale an output feature."""

_MORE_THAN_HALF = ("float32", "float64")


def weight_form(
    settings: ModelConfig, stored: Iterable[TensorInfo], *, dtype: torch.dtype, device: torch.device
) -> WeightForm:
    """The form that the settings ask for.

    With `dtype="auto"` a CPU keeps weights in half precision if that is all the checkpoint has: none of its
    matrices is stored in float32. `dtype="float32"` keeps them as they are.
    """
    if settings.quantization == "int8":
        return "int8"
    if settings.dtype != "auto" or dtype != torch.float32 or device.type != "cpu":
        return "exact"
    exact = any(info.dtype in _MORE_THAN_HALF for info in stored if len(info.shape) > 1)
    return "exact" if exact else "half"


def pack_product(weight: torch.Tensor, bias: torch.Tensor | None, form: WeightForm) -> PackedProduct | None:
    """The product with a dense weight `[out, in]`; None where the dense weight itself is best."""
    if form == "int8":
        return Int8Product(weight, bias)
    panels = panel_product(weight, bias, half=form == "half")
    return onednn_product(weight, bias) if panels is None else panels
