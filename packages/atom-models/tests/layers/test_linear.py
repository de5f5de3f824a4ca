"""Linear layers, dense and packed, alone and fused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from atom.models.layers import FusedLinear, GateUpLinear, LayerArgumentError, Linear, QKVLinear


def filled(layer: Linear) -> Linear:
    torch.manual_seed(0)
    for parameter in layer.parameters():
        parameter.data.normal_()
    return layer


@pytest.mark.parametrize("form", ["exact", "half"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 17])
def test_packed_and_dense_products_agree(rows, bias, form):
    layer = filled(Linear(72, 40, bias=bias))
    x = torch.randn(rows, 72)
    wanted = F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), wanted)
    layer.pack(form)
    got = layer(x)
    tolerance = 1e-5 if form == "exact" else 2e-2
    assert got.shape == wanted.shape
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)


def test_packing_gives_up_the_dense_weight_and_packing_again_changes_nothing():
    layer = filled(Linear(64, 64))
    layer.pack()
    packed = layer._packed
    assert packed is not None
    assert not list(layer.parameters())
    layer.pack("int8")
    assert layer._packed is packed


def test_an_input_that_is_a_slice_is_multiplied_like_its_copy():
    layer = filled(Linear(16, 24))
    wide = torch.randn(6, 40)
    layer.pack()
    torch.testing.assert_close(layer(wide[:, 8:24]), layer(wide[:, 8:24].contiguous()))


def test_parts_of_a_fused_layer_are_views_in_order():
    layer = FusedLinear(8, {"a": 3, "b": 5}, bias=True)
    layer.part("a").fill_(1.0)
    layer.part("b").fill_(2.0)
    layer.part("b", "bias").fill_(3.0)
    assert layer.weight[:3].eq(1).all()
    assert layer.weight[3:].eq(2).all()
    assert layer.bias[3:].eq(3).all()


def test_query_key_value_and_gate_up_lie_as_documented():
    assert QKVLinear(64, 4, 2, 8).parts == {"q": 32, "k": 16, "v": 16}
    assert GateUpLinear(64, 96).parts == {"gate": 96, "up": 96}


@pytest.mark.parametrize(("part", "of"), [("c", "weight"), ("a", "bias")])
def test_a_part_that_is_not_there_is_named(part, of):
    with pytest.raises(LayerArgumentError, match=f"no {of} of projection '{part}'"):
        FusedLinear(8, {"a": 3}).part(part, of)
