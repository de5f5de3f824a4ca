"""Graphs that return one value and graphs that return several, treated alike."""

from __future__ import annotations

from torch import fx

__all__ = ["returning_tuple"]


def returning_tuple(graph: fx.GraphModule) -> tuple[fx.GraphModule, bool]:
    """`graph`, or a copy of it that returns a tuple of one; and whether it returned a single value."""
    output = next(iter(reversed(graph.graph.nodes)))
    value = output.args[0]
    if isinstance(value, tuple | list):
        return graph, False
    copied = fx.Graph()
    inner = copied.graph_copy(graph.graph, {})
    copied.output((inner,)).meta = dict(output.meta)
    return fx.GraphModule(graph, copied), True
