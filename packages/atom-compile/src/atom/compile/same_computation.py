"""Whether a graph traced for any size computes what a graph traced at one size computes.

Tracing treats sizes 0 and 1 as constants, so a graph for any size is one for sizes from 2 on. A forward may
do something else for a single row (`squeeze`, an `if`, broadcasting). Tracing it once more at that very size
tells: if operation for operation both graphs are the same there, the general one serves that size as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx

from atom.compile.symbolic_sizes import is_size_value

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["same_computation"]


def same_computation(general: fx.Graph, exact: fx.Graph, sizes: Mapping[str, int]) -> bool:
    """Compare `general` at `sizes` (symbol name -> size) with `exact`."""
    return _signature(general, sizes) == _signature(exact, {})


def _signature(graph: fx.Graph, sizes: Mapping[str, int]) -> list[Any]:
    numbers: dict[fx.Node, Any] = {}
    lines: list[Any] = []

    def plain(value: Any) -> Any:
        if isinstance(value, fx.Node):
            traced = value.meta.get("example_value")
            return plain(traced) if is_size_value(traced) else numbers[value]
        if isinstance(value, torch.SymInt):
            return _at(value, sizes)
        if isinstance(value, tuple | list):  # torch.Size as well
            return tuple(plain(item) for item in value)
        if isinstance(value, dict):
            return tuple((key, plain(item)) for key, item in sorted(value.items()))
        if isinstance(value, slice):
            return ("slice", plain((value.start, value.stop, value.step)))
        return value

    def described(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return (value.dtype, value.device, plain(tuple(value.shape)))
        if isinstance(value, tuple | list):
            return tuple(described(item) for item in value)
        return plain(value)

    for node in graph.nodes:
        value = node.meta.get("example_value")
        if node.op == "placeholder":
            numbers[node] = ("input", node.target)
        elif node.op == "output":
            lines.append(("output", plain(node.args)))
        elif not is_size_value(value):
            numbers[node] = ("node", len(lines))
            lines.append((node.op, node.target, plain(node.args), plain(node.kwargs), described(value)))
    return lines


def _at(size: torch.SymInt, sizes: Mapping[str, int]) -> Any:
    expression = size.node.expr
    known = {
        symbol: sympy.Integer(sizes[str(symbol)])
        for symbol in expression.free_symbols
        if str(symbol) in sizes
    }
    result = expression.xreplace(known)
    return int(result) if result.is_Integer else result
