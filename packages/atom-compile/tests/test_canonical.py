"""Equal pieces have equal texts; anything a compiler reads makes another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import fx

from atom.compile.canonical import UncacheableError, canonicalize
from atom.compile.split import split_graph

if TYPE_CHECKING:
    from collections.abc import Callable


def text_of(function: Callable[..., Any], *inputs: Any) -> str:
    return canonicalize(fx.symbolic_trace(function), inputs).text


def affine(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.add(x @ w, w, alpha=2)


X, W = torch.zeros(3, 4), torch.zeros(4, 4)


def test_names_do_not_matter() -> None:
    def renamed(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        product = hidden @ weight
        return torch.add(product, weight, alpha=2)

    assert text_of(affine, X, W) == text_of(renamed, X, W)


DIFFERENT: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "constant": (lambda x, w: torch.add(x @ w, w, alpha=3), X, W),
    "operation": (lambda x, w: torch.sub(x @ w, w, alpha=2), X, W),
    "order": (lambda x, w: torch.add(w, x @ w, alpha=2), X, W),
    "number format": (affine, X.double(), W.double()),
    "shape": (affine, torch.zeros(5, 4), W),
    "layout": (affine, X, W.t()),
    "parameter": (affine, X, torch.nn.Parameter(W)),
    "device": (affine, X.to("meta"), W.to("meta")),
    "shared storage": (affine, W[:3], W),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_a_compiler_reads_makes_another_text(case: str) -> None:
    function, x, w = DIFFERENT[case]
    assert text_of(function, x, w) != text_of(affine, X, W)


def test_constants_count_by_content() -> None:
    def with_constant(value: float) -> str:
        graph = fx.Graph()
        x = graph.placeholder("x")
        graph.output((graph.call_function(torch.mul, (x, graph.get_attr("c"))),))
        return canonicalize(fx.GraphModule({"c": torch.tensor([value])}, graph), [X]).text

    assert with_constant(1.0) == with_constant(1.0) != with_constant(2.0)


def test_schema_and_tags_of_an_op_count() -> None:
    assert "atom_test::shift(Tensor x) -> Tensor" in text_of(lambda x: torch.ops.atom_test.shift(x), X)


def test_equal_layers_of_a_model_are_equal_pieces_with_symbols_in_order(
    stack_of: Any, config_for: Any
) -> None:
    texts: list[str] = []

    def look(gm: fx.GraphModule, inputs: Any) -> Any:
        _, items = split_graph(gm, ["atom_test.attend"])
        for item in items:
            if item.is_compiled:
                placeholders = item.graph.graph.find_nodes(op="placeholder")
                canonical = canonicalize(item.graph, [node.meta["example_value"] for node in placeholders])
                assert len(canonical.symbols) == 1
                assert canonical.sizes == {"s0": 6}
                texts.append(canonical.text)
        return gm

    model = stack_of(config_for(0), layers=5)
    ids = torch.arange(6)
    torch._dynamo.mark_dynamic(ids, 0)
    torch.compile(model.forward, backend=look, fullgraph=True)(ids)
    assert len(texts) == 6
    assert len(set(texts)) == 3
    assert texts[1] == texts[4]


def test_what_has_no_name_in_another_process_is_uncacheable() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(lambda value: value, (x,)),))
    with pytest.raises(UncacheableError, match="no name"):
        canonicalize(fx.GraphModule({}, graph), [X])
    with pytest.raises(UncacheableError, match="input 0 is a str"):
        canonicalize(fx.GraphModule({}, graph), ["text"])
