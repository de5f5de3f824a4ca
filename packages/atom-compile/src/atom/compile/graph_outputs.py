"""Copies of graphs, and graphs that return one value treated like those that return several."""

from __future__ import annotations

from typing import Any

from torch import fx

__all__ = ["copied_graph", "output_of", "returning_tuple"]


def output_of(graph: fx.Graph) -> fx.Node:
    """The output node."""
    node: fx.Node = next(iter(reversed(graph.nodes)))
    return node


def copied_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """A graph that may be rewritten; parameters, constants and traced values are shared with `gm`."""
    return _copy(gm, lambda value: value)


def returning_tuple(gm: fx.GraphModule) -> tuple[fx.GraphModule, bool]:
    """`gm`, or a copy of it that returns a tuple of one; and whether it returned a single value."""
    if isinstance(output_of(gm.graph).args[0], tuple | list):
        return gm, False
    return _copy(gm, lambda value: (value,)), True


def _copy(gm: fx.GraphModule, wrap: Any) -> fx.GraphModule:
    copied = fx.Graph()
    value = copied.graph_copy(gm.graph, {})
    copied.output(wrap(value)).meta = dict(output_of(gm.graph).meta)
    return fx.GraphModule(gm, copied)
