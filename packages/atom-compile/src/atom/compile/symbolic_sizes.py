"""Keeps sizes out of what crosses a cut.

A traced forward may compute with sizes (`x.shape[0] * 2`) or keep a whole `torch.Size` for later. Cutting
the graph between such a node and its use would hand an integer expression, or a size object, from piece to
piece; compilers and caches take flat lists of tensors and plain integers. Every use is therefore rewritten
to compute its sizes again, right where they are used, from the graph's own symbol inputs.
"""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

__all__ = ["is_size_value", "localize_sizes", "symbol_inputs"]


def symbol_inputs(graph: fx.Graph) -> dict[sympy.Symbol, fx.Node]:
    """The placeholders of `graph` that are symbols themselves, by symbol."""
    found: dict[sympy.Symbol, fx.Node] = {}
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymInt) and isinstance(value.node.expr, sympy.Symbol):
            found.setdefault(value.node.expr, node)
    return found


def is_size_value(value: Any) -> bool:
    """Whether a node of this value computes sizes only: a `torch.Size`, a symbolic or a plain integer."""
    return isinstance(value, torch.Size | torch.SymInt) or (
        isinstance(value, int) and not isinstance(value, bool)
    )


def localize_sizes(gm: fx.GraphModule) -> set[fx.Node]:
    """Rewrite every use of a size node as described above; the size nodes themselves disappear.

    Returns:
        The new nodes that feed the graph's output (a forward that returns a size).

    Sizes that depend on data (they have no symbol among the inputs) stay as they are.
    """
    graph = gm.graph
    symbols = symbol_inputs(graph)
    size_nodes = [
        node
        for node in graph.nodes
        if node.op in ("call_function", "call_method", "call_module")
        and is_size_value(node.meta.get("example_value"))
        and _expressible(node.meta["example_value"], symbols)
    ]
    rewritten = set(size_nodes)
    for_output: set[fx.Node] = set()
    for node in size_nodes:
        value = node.meta["example_value"]
        for user in list(node.users):
            if user in rewritten:
                continue
            with graph.inserting_before(user):
                replacement, made = _materialize(graph, symbols, value)
            if user.op == "output":
                for_output.update(made)
            user.args = _replaced(user.args, node, replacement)
            user.kwargs = _replaced(user.kwargs, node, replacement)
    for node in reversed(size_nodes):
        if not node.users:
            graph.erase_node(node)
    gm.recompile()
    return for_output


def _replaced(argument: Any, old: fx.Node, new: Any) -> Any:
    return fx.node.map_arg(argument, lambda node: new if node is old else node)


def _expressible(value: Any, symbols: dict[sympy.Symbol, fx.Node]) -> bool:
    if isinstance(value, torch.Size):
        return all(_expressible(size, symbols) for size in value)
    if isinstance(value, torch.SymInt):
        return set(value.node.expr.free_symbols) <= set(symbols)
    return True


def _materialize(
    graph: fx.Graph, symbols: dict[sympy.Symbol, fx.Node], value: Any
) -> tuple[Any, list[fx.Node]]:
    """`value` as something a node's arguments can hold, and the nodes that had to be made for it."""
    if isinstance(value, torch.Size):
        parts = [_materialize(graph, symbols, size) for size in value]
        return tuple(part for part, _ in parts), [node for _, made in parts for node in made]
    if not isinstance(value, torch.SymInt):
        return int(value), []
    expression = value.node.expr
    if isinstance(expression, sympy.Symbol):
        return symbols[expression], []
    if isinstance(expression, sympy.Integer):
        return int(expression), []
    before = set(graph.nodes)
    tracer = fx.proxy.GraphAppendingTracer(graph)
    proxies = {symbol: fx.Proxy(node, tracer) for symbol, node in symbols.items()}
    result = sympy_interp(PythonReferenceAnalysis, proxies, expression)
    made = [node for node in graph.nodes if node not in before]
    for node in made:
        arguments = fx.node.map_arg(node.args, lambda argument: argument.meta["example_value"])
        node.meta["example_value"] = node.target(*arguments)
    return result.node, made
