"""Packed products in what is traced: one op, a tensor that names the product, no weight."""

from __future__ import annotations

import gc

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from atom.models.layers import Linear
from atom.models.layers.prepacked import _products, is_traced


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


def packed_layer(bias: bool = False) -> Linear:
    torch.manual_seed(0)
    layer = Linear(32, 16, bias=bias)
    for parameter in layer.parameters():
        parameter.data.normal_()
    layer.pack()
    return layer


def test_a_dispatch_mode_sees_one_op_and_the_same_result():
    layer, x = packed_layer(bias=True), torch.randn(3, 32)
    plain = layer(x)
    with Seen() as mode:
        traced = layer(x)
    assert mode.ops == ["aiter.packed_linear.default"]
    assert torch.equal(plain, traced)


def test_plain_calls_skip_the_op():
    assert not is_traced()
    with Seen():
        assert is_traced()


def test_a_compiler_traces_it_whole_and_equal_layers_are_equal_graphs():
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    for layer in (packed_layer(), packed_layer()):
        x = torch.randn(3, 32)
        torch._dynamo.reset()
        compiled = torch.compile(layer, backend=backend, fullgraph=True)
        torch.testing.assert_close(compiled(x), layer(x))
    first, second = graphs
    assert first.code == second.code
    assert "aiter.packed_linear" in first.code


def test_the_op_checks_under_fake_tensors():
    layer = packed_layer()
    torch.library.opcheck(
        torch.ops.aiter.packed_linear.default,
        (torch.randn(3, 32), layer._packed.token, 16),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_a_product_goes_with_its_layer():
    layer = packed_layer()
    number = int(layer._packed.token)
    assert number in _products
    del layer
    gc.collect()
    assert number not in _products
