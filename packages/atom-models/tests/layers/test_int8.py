"""8-bit weights: torch's kernel and the widened product stand for the same weights."""

from __future__ import annotations

import pytest
import torch

from atom.models.layers import int8
from atom.models.layers.int8 import Int8Product


def weights() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(40, 64), torch.randn(40)


@pytest.mark.parametrize("rows", [0, 1, 5, 16, 17, 40])
@pytest.mark.parametrize("with_bias", [False, True])
def test_products_are_within_the_rounding_of_weight_and_input(rows, with_bias):
    weight, bias = weights()
    x = torch.randn(rows, 64)
    product = Int8Product(weight, bias if with_bias else None)
    wanted = x @ weight.t() + (bias if with_bias else 0)
    assert product(x).dtype == x.dtype
    assert product(x).shape == wanted.shape
    if rows:
        assert (product(x) - wanted).abs().max() < 0.02 * wanted.abs().max()


def test_both_ways_multiply_the_same_weights(monkeypatch):
    weight, _ = weights()
    product = Int8Product(weight, None)
    x = torch.randn(4, 64).bfloat16().float()  # nothing left to round in the input
    with_kernel = product(x)
    monkeypatch.setattr(product, "_multiply", None)
    torch.testing.assert_close(product(x), with_kernel, atol=0.1, rtol=0.01)


def test_a_row_of_zeros_stays_zero():
    weight, _ = weights()
    weight[7] = 0
    assert not Int8Product(weight, None)(torch.randn(3, 64))[:, 7].any()


def test_a_torch_without_the_kernel_widens(monkeypatch):
    monkeypatch.setattr(int8, "_kernel", lambda weight, scale: None)
    weight, _ = weights()
    x = torch.randn(2, 64)
    product = Int8Product(weight, None)
    assert (product(x) - x @ weight.t()).abs().max() < 0.02 * (x @ weight.t()).abs().max()
