"""Sizes are computed where they are used."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from atom.compile.symbolic_sizes import is_size_value, localize_sizes, symbol_inputs


def test_size_nodes_give_way_to_integers_made_in_place() -> None:
    rewritten: list[fx.Graph] = []

    def look(gm: fx.GraphModule, inputs: Any) -> Any:
        for_output = localize_sizes(gm)
        gm.graph.lint()
        rewritten.append(gm.graph)
        assert len(symbol_inputs(gm.graph)) == 1
        assert [str(node.target) for node in for_output] == ["<built-in function mul>"]
        return gm

    def run(x: torch.Tensor) -> Any:
        size = (x + 1).size()
        return (x * 2).view(size), x.view(x.shape[0] * 2, 4), x.numel()

    x = torch.randn(6, 8)
    torch._dynamo.mark_dynamic(x, 0)
    a, b, count = torch.compile(run, backend=look, fullgraph=True)(x)
    assert (a.shape, b.shape, count) == ((6, 8), (12, 4), 48)
    values = [node.meta.get("example_value") for node in rewritten[0].nodes]
    assert not any(isinstance(value, torch.Size) for value in values)


def test_only_sizes_are_size_values() -> None:
    assert is_size_value(torch.Size([2]))
    assert is_size_value(3)
    assert not is_size_value(True)
    assert not is_size_value(torch.ones(1))
    assert not is_size_value(None)
