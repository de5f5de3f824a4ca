"""Cutting graphs, and what may cross a cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from atom.compile import (
    CustomOpError,
    SplitError,
    compilation_counter,
    direct_register_custom_op,
    mark_spliting_op,
    split_graph,
)
from atom.compile.split import check_eager_regions

if TYPE_CHECKING:
    from collections.abc import Callable

ops = torch.ops.atom_test
SIZES = (1, 2, 7, 64)


def half_used_later(self: Any, x: torch.Tensor) -> Any:
    first, second = ops.pair(x @ self.w)
    middle = ops.shift(first.sin())
    return ops.shift(middle.cos()) + second


def a_list(self: Any, x: torch.Tensor) -> Any:
    first, second = ops.several(x + self.b)
    return first * second


def half_unused(self: Any, x: torch.Tensor) -> Any:
    return ops.pair(x * 2)[0] - 1


def nothing_but_writes(self: Any, x: torch.Tensor) -> Any:
    out = torch.empty_like(x)
    ops.write_into(x + 1, out)
    return out * 2


def two_in_a_row(self: Any, x: torch.Tensor) -> Any:
    return ops.shift(ops.shift(x @ self.w)) + 1


def first_node(self: Any, x: torch.Tensor) -> Any:
    return ops.shift(x).relu()


def last_node(self: Any, x: torch.Tensor) -> Any:
    return ops.shift(x.relu())


def straight_to_the_output(self: Any, x: torch.Tensor) -> Any:
    return ops.pair(x)


def only_node(self: Any, x: torch.Tensor) -> Any:
    return ops.shift(x)


def shape_after(self: Any, x: torch.Tensor) -> Any:
    y = x.view(-1, 2, 4) + 1
    shape = y.shape
    return ops.shift(x * 2).view(shape)


def size_after(self: Any, x: torch.Tensor) -> Any:
    y = x.view(-1, 2, 4) + 1
    size = y.size()
    return ops.shift(x * 2).view(size) + y


def product_after(self: Any, x: torch.Tensor) -> Any:
    rows = x.shape[0] * 2
    return ops.shift(x + 1).view(rows, 4) * rows


def slice_after(self: Any, x: torch.Tensor) -> Any:
    tail = (x.view(-1, 2, 4) * 3).shape[1:]
    return ops.shift(x - 1).view(-1, *tail)


def sizes_of_a_result(self: Any, x: torch.Tensor) -> Any:
    both = torch.cat(ops.several(x + 1))
    half = both.shape[0] // 2
    return ops.shift(both * 2)[:half] + both.numel()


def sizes_as_outputs(self: Any, x: torch.Tensor) -> Any:
    y = ops.shift(x + 1)
    return y, y.shape[0] * 3, tuple(y.shape)


def mutates_across(self: Any, x: torch.Tensor) -> Any:
    state = x * 2
    view = state[:, :4]
    ops.write_into(x[:, :4] + 1, view)
    state.add_(1)
    y = ops.shift(state)
    view.mul_(3)
    return y + state


FORWARDS = [
    half_used_later,
    a_list,
    half_unused,
    nothing_but_writes,
    two_in_a_row,
    first_node,
    last_node,
    straight_to_the_output,
    only_node,
    shape_after,
    size_after,
    product_after,
    slice_after,
    sizes_of_a_result,
    sizes_as_outputs,
    mutates_across,
]


def assert_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, tuple | list):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_same(a, e)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    else:
        assert actual == expected


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_level_3_equals_level_0_cold_and_warm(
    config_for: Any, model_of: Any, new_process: Callable[[], None], forward: Any
) -> None:
    inputs = {size: torch.randn(size, 8) for size in SIZES}
    for _ in ("cold", "warm"):
        new_process()
        model = model_of(forward, config_for())
        for size in (7, 1, 2, 64):
            assert_same(model(inputs[size].clone()), model.forward(inputs[size].clone()))
    assert compilation_counter.num_backend_compilations == 0
    assert compilation_counter.num_artifacts_rejected == 0


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_only_tensors_and_integers_cross_a_cut(config_for: Any, model_of: Any, forward: Any) -> None:
    model = model_of(forward, config_for())
    model(torch.randn(5, 8))
    backend = model._compiled_forward._backend
    for item in backend.piecewise_graphs:
        for node in item.graph.graph.find_nodes(op="placeholder"):
            value = node.meta["example_value"]
            assert isinstance(value, torch.Tensor) or value.node.expr.is_Symbol
        splits = [node for node in item.graph.graph.nodes if str(node.target).startswith("atom_test.")]
        assert len(splits) == item.is_splitting_graph


def traced(function: Any, *args: Any) -> torch.fx.GraphModule:
    kept: list[torch.fx.GraphModule] = []

    def keep(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        kept.append(gm)
        return gm

    torch.compile(function, backend=keep, fullgraph=True)(*args)
    return kept[0]


def test_items_come_in_the_order_of_execution() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return ops.shift(ops.pair(x + 1)[0] * 2) + 3

    stitched, items = split_graph(traced(run, torch.randn(4)), ["atom_test.shift", "atom_test::pair"])
    assert [item.is_splitting_graph for item in items] == [False, True, False, True, False]
    assert [item.graph_id for item in items] == [0, 1, 2, 3, 4]
    assert [item.submod_name for item in items] == [f"submod_{i}" for i in range(5)]
    x = torch.randn(4)
    assert torch.equal(stitched(x)[0], run(x))


def test_without_splitting_ops_there_is_one_piece() -> None:
    _, items = split_graph(traced(lambda x: ops.shift(x + 1) * 2, torch.randn(4)), [])
    assert [item.is_compiled for item in items] == [True]


def test_a_marked_op_splits_unless_told_not_to() -> None:
    direct_register_custom_op("atom_test_marked", lambda_free_double, [], lambda_free_double)
    assert mark_spliting_op("aiter.atom_test_marked") is torch.ops.aiter.atom_test_marked.default
    assert mark_spliting_op(torch.ops.aiter.atom_test_marked) is torch.ops.aiter.atom_test_marked.default

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aiter.atom_test_marked(x + 1) * 2

    assert len(split_graph(traced(run, torch.randn(4)), [])[1]) == 3
    assert len(split_graph(traced(run, torch.randn(4)), [], marked=False)[1]) == 1


def lambda_free_double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_only_registered_ops_can_be_marked() -> None:
    with pytest.raises(CustomOpError, match=r"aiter\.absent.*direct_register_custom_op"):
        mark_spliting_op("aiter.absent")


@pytest.mark.parametrize("name", ["shift", "atom_test.shift.default", "", ".x"])
def test_a_malformed_splitting_op_is_refused(name: str) -> None:
    with pytest.raises(SplitError, match=r"namespace\.op"):
        split_graph(traced(lambda x: x + 1, torch.randn(4)), [name])


@pytest.mark.parametrize("mark", ["__atom_region__", "__atom_eager_region__"])
def test_an_eager_region_has_to_be_a_splitting_op(mark: str) -> None:
    def region(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    setattr(region, mark, True)
    name = f"atom_test_region{mark}"
    direct_register_custom_op(name, region, [], lambda_free_double)

    def run(x: torch.Tensor) -> torch.Tensor:
        return getattr(torch.ops.aiter, name)(x * 2)

    _, items = split_graph(traced(run, torch.randn(4)), [])
    with pytest.raises(SplitError, match=rf"aiter\.{name}.*splitting_ops"):
        check_eager_regions(items)
    _, items = split_graph(traced(run, torch.randn(4)), [f"aiter.{name}"])
    check_eager_regions(items)
    assert any(item.is_splitting_graph for item in items)


@pytest.mark.usefixtures("compilers")
def test_compiling_refuses_a_region_inside_a_piece(config_for: Any, model_of: Any) -> None:
    def region(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    region.__atom_region__ = True  # type: ignore[attr-defined]
    direct_register_custom_op("atom_test_region_inside", region, [], lambda_free_double)
    model = model_of(lambda self, x: torch.ops.aiter.atom_test_region_inside(x * 2), config_for())
    with pytest.raises(SplitError, match=r"aiter\.atom_test_region_inside"):
        model(torch.randn(3, 8))
