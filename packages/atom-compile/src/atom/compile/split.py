"""Cuts a traced graph at splitting ops."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.passes.split_module import split_module

from atom.compile.custom_op import op_overload, registered_op_func
from atom.compile.errors import CustomOpError, SplitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import fx
    from torch._ops import OpOverload, OpOverloadPacket

__all__ = ["SplitItem", "check_eager_regions", "eager_region_in", "mark_spliting_op", "split_graph"]

_REGION_MARKS = ("__atom_region__", "__atom_eager_region__")
"""Attributes that tell an eager region; whoever declares regions sets one on the function."""

_marked: set[str] = set()
"""`ns::op` of the ops marked with `mark_spliting_op`."""


@dataclass(frozen=True)
class SplitItem:
    """One subgraph of a split graph, in the order of execution."""

    submod_name: str
    """Attribute of the stitching module that holds the subgraph."""
    graph_id: int
    is_splitting_graph: bool
    """Whether this is a splitting op (with the unpacking of its results) and nothing else."""
    graph: fx.GraphModule

    @property
    def is_compiled(self) -> bool:
        """Whether a compiler gets this subgraph: not a splitting op, and more than integer arithmetic."""
        from atom.compile.symbolic_sizes import is_size_value  # loads sympy, which marking an op need not

        return not self.is_splitting_graph and any(
            not is_size_value(node.meta.get("example_value"))
            for node in self.graph.graph.nodes
            if node.op not in ("placeholder", "output", "get_attr")
        )


def mark_spliting_op(op: str | OpOverload | OpOverloadPacket) -> OpOverload:
    """Mark a registered op as a place where graphs are cut, whatever `splitting_ops` lists.

    A split is a compile boundary only; whether a recording breaks there is for the op's implementation
    to declare.

    Raises:
        CustomOpError: the op is not registered.
    """
    overload = op_overload(op if isinstance(op, str) else str(op))
    _marked.add(overload._schema.name)
    return overload


def split_graph(
    graph: fx.GraphModule, splitting_ops: Sequence[str], *, marked: bool = True
) -> tuple[fx.GraphModule, list[SplitItem]]:
    """Cut `graph` at the ops named in `splitting_ops` (`ns.op`, no overload) and at marked ops.

    Each occurrence of a splitting op gets a subgraph of its own, together with the unpacking of its
    results, so that only tensors and the graph's own symbol inputs cross a cut. `graph` is rewritten for
    that (see `localize_sizes`).

    Args:
        marked: cut at marked ops as well.

    Returns:
        The stitching module, which calls the subgraphs one after another, and the subgraphs in that order.

    Raises:
        SplitError: an entry of `splitting_ops` does not read `ns.op`.
    """
    names = {_qualified(name) for name in splitting_ops} | (_marked if marked else set())
    from atom.compile.symbolic_sizes import localize_sizes  # loads sympy, which marking an op need not

    for_output = localize_sizes(graph)
    partition, splitting = _partition(graph.graph, names, for_output)
    stitched = split_module(graph, None, partition.__getitem__, keep_original_order=True)  # type: ignore[arg-type]
    items = []
    for name, subgraph in stitched.named_children():
        graph_id = int(name.removeprefix("submod_"))
        items.append(SplitItem(name, graph_id, graph_id in splitting, subgraph))  # type: ignore[arg-type]
    return stitched, sorted(items, key=lambda item: item.graph_id)


def check_eager_regions(items: Iterable[SplitItem]) -> None:
    """Refuse a compiled piece that holds an op implemented by an eager region.

    A region runs eagerly between the segments of a recording, so it has to be a cut here as well: inside a
    compiled piece it would be recorded with its first step's plan.

    Raises:
        SplitError: names the op.
    """
    for item in items:
        name = eager_region_in(item.graph.graph) if item.is_compiled else None
        if name is not None:
            raise SplitError(
                f"op {name} is implemented by an eager region but is not a splitting op: add {name!r} to "
                f"splitting_ops, or mark_spliting_op({name!r}) where it is registered"
            )


def eager_region_in(graph: fx.Graph) -> str | None:
    """`ns.op` of the first op in `graph` that an eager region implements."""
    for node in graph.nodes:
        op = _called_op(node)
        if op is not None and _is_eager_region(registered_op_func(op)):
            return op._schema.name.replace("::", ".")
    return None


def _qualified(name: str) -> str:
    namespace, _, base = name.replace("::", ".").partition(".")
    if not namespace or not base or "." in base:
        raise SplitError(f"splitting op {name!r}: names read 'namespace.op', without overload")
    return f"{namespace}::{base}"


def _partition(
    graph: fx.Graph, names: set[str], for_output: set[fx.Node]
) -> tuple[dict[fx.Node, int], set[int]]:
    """Which subgraph each node goes to, and which subgraphs are splitting ops."""
    partition: dict[fx.Node, int] = {}
    splitting: set[int] = set()
    current = 0
    filled = False  # whether the current subgraph has a node yet
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        op = _called_op(node)
        if op is not None and op._schema.name in names:
            current += filled
            partition[node] = current
            splitting.add(current)
            current, filled = current + 1, False
        elif _unpacks(node) and partition[node.args[0]] in splitting:
            partition[node] = partition[node.args[0]]
        elif node not in for_output:
            partition[node] = current
            filled = True
    current += filled
    partition.update(dict.fromkeys(sorted(for_output), current))
    return partition, splitting


def _unpacks(node: fx.Node) -> bool:
    """Whether `node` takes one value out of several that an op returned."""
    source = node.args[0] if node.target is operator.getitem else None
    return (
        isinstance(source, torch.fx.Node)
        and source.op != "placeholder"
        and not isinstance(source.meta.get("example_value"), torch.Tensor)
    )


def _called_op(node: fx.Node) -> OpOverload | None:
    if node.op != "call_function":
        return None
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target
    if isinstance(target, torch._ops.OpOverloadPacket):
        try:
            return op_overload(str(target))
        except CustomOpError:  # an op without a default overload is none of ours
            return None
    return None


def _is_eager_region(function: Callable[..., Any] | None) -> bool:
    while function is not None:
        if any(getattr(function, mark, None) for mark in _REGION_MARKS):
            return True
        function = getattr(function, "__wrapped__", None)
    return False
