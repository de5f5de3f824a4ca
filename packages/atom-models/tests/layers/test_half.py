"""float16 weights under float32 inputs."""

from __future__ import annotations

import pytest
import torch

from atom.models.layers import half
from atom.models.layers.half import half_product
from atom.models.layers.onednn import OneDnnProduct
from atom.models.layers.packing import pack_product


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_only_the_weight_is_rounded(rows):
    torch.manual_seed(0)
    weight, bias, x = torch.randn(40, 72), torch.randn(40), torch.randn(rows, 72)
    product = half_product(weight, bias)
    if product is None:
        pytest.skip("this build of torch has no float16 weights")
    wanted = x.double() @ weight.half().double().t() + bias.double()
    assert product(x).dtype == torch.float32
    torch.testing.assert_close(product(x).double(), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("value", [1e5, -7e4, float("inf"), float("nan")])
def test_a_value_too_large_for_float16_keeps_the_layer_exact(value):
    weight = torch.randn(8, 8)
    weight[3, 4] = value
    assert half_product(weight, None) is None
    assert isinstance(pack_product(weight, None, "half"), OneDnnProduct)


def test_a_torch_without_the_operators_keeps_float32(monkeypatch):
    class Missing(half.HalfProduct):
        def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
            raise RuntimeError("Didn't find engine for operation quantized::linear_prepack_fp16")

    monkeypatch.setattr(half, "HalfProduct", Missing)
    assert half_product(torch.randn(8, 8), None) is None
    assert isinstance(pack_product(torch.randn(8, 8), None, "half"), OneDnnProduct)
