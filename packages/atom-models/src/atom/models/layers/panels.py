"""Products with a weight in the panels of the CPU kernels: float32 as it is, or rounded to float16."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom.models.cpu import calls
from atom.models.cpu.build import cpu_kernels
from atom.models.layers.prepacked import PackedProduct

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom.models.cpu.kernels import CpuKernels

_LARGEST = torch.finfo(torch.float16).max


class PanelProduct(PackedProduct):
    """Inputs, sums and results are float32. A row's result does not depend on the rows beside it."""

    def __init__(self, kernels: CpuKernels, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """`weight` `[out, in]` is float32 or float16."""
        super().__init__(weight.shape[0])
        self.name = f"{str(weight.dtype).removeprefix('torch.')} panels"
        self._kernels = kernels
        self._panels = kernels.pack(weight)
        self._bias = None if bias is None else bias.detach().contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernels.linear(x, self._panels, self._bias, self.out_features)

    def bind(self, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None] | None:
        if not (x.is_contiguous() and y.is_contiguous()):
            return None
        return self._kernels.repeatable(calls.linear(x, self._panels, self._bias, y))


def panel_product(
    weight: torch.Tensor, bias: torch.Tensor | None, *, half: bool = False
) -> PanelProduct | None:
    """The product with a float32 weight; None on another device, in another dtype, or without the kernels.

    `half` keeps 11 bits of a weight, which is all that a checkpoint in float16, bfloat16 or blocks has. It
    costs half the memory and the time to read it. A weight with a value too large for float16 keeps all bits.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    kernels = cpu_kernels()
    if kernels is None:
        return None
    if half:
        low, high = torch.aminmax(weight)
        if float(low) >= -_LARGEST and float(high) <= _LARGEST:
            weight = weight.half()
    return PanelProduct(kernels, weight, bias)
