"""oneDNN's layout where torch has it, and staying dense where it has not."""

from __future__ import annotations

import logging

import pytest
import torch

from atom.models.layers import Linear, onednn, panels
from atom.models.layers.onednn import onednn_product


@pytest.mark.parametrize("bias", [False, True])
def test_bfloat16_products_are_near_float32(bias):
    torch.manual_seed(0)
    weight, offset = torch.randn(40, 72).bfloat16(), torch.randn(40).bfloat16()
    product = onednn_product(weight, offset if bias else None)
    if product is None:
        pytest.skip("this processor has no bfloat16 products")
    x = torch.randn(3, 72).bfloat16()
    wanted = x.double() @ weight.double().t() + (offset.double() if bias else 0)
    assert product(x).dtype == torch.bfloat16
    torch.testing.assert_close(product(x).double(), wanted, atol=0.1, rtol=0.02)


def test_other_dtypes_stay_dense():
    assert onednn_product(torch.randn(8, 8, dtype=torch.float64), None) is None
    assert onednn_product(torch.randn(8, 8, device="meta"), None) is None


def test_a_torch_without_the_operators_stays_dense_and_says_so_once(monkeypatch, caplog):
    class Missing(onednn.OneDnnProduct):
        def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
            raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'")

    monkeypatch.setattr(onednn, "OneDnnProduct", Missing)
    monkeypatch.setattr(panels, "cpu_kernels", lambda: None)
    layer = Linear(8, 8)
    layer.weight.data.normal_()
    x = torch.randn(2, 8)
    before = layer(x)
    with caplog.at_level(logging.INFO, logger="atom.models"):
        layer.pack()
    assert torch.equal(layer(x), before)
    assert "linear layers stay dense" in caplog.text
    assert len(caplog.text.splitlines()) == 1


def test_without_onednn_nothing_is_packed(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert onednn_product(torch.randn(8, 8), None) is None
