"""Walks a split graph and has its pieces compiled."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from atom.compile.graph_outputs import output_of, returning_tuple
from atom.compile.piecewise_backend import PiecewiseBackend

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from atom.compile.manager import CompilerManager
    from atom.compile.split import SplitItem

__all__ = ["PiecewiseCompileInterpreter", "fake_inputs", "mode_of"]


class PiecewiseCompileInterpreter(fx.Interpreter):
    """Runs the stitching module on fake inputs, and replaces each piece that a compiler takes by a
    `PiecewiseBackend` on the way.

    Values between pieces are those that Dynamo saw while tracing, so no piece has to be run for them.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        items: Iterable[SplitItem],
        *,
        manager: CompilerManager,
        compile_sizes: Iterable[int] = (),
        first_index: int = 0,
    ) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self._items = {item.submod_name: item for item in items}
        self._compiled_indices = {
            item.submod_name: index
            for index, item in enumerate(
                (item for item in self._items.values() if item.is_compiled), start=first_index
            )
        }
        self._manager = manager
        self._compile_sizes = tuple(compile_sizes)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        item = self._items[target]
        if target in self._compiled_indices:
            index = self._compiled_indices[target]
            graph, _ = returning_tuple(item.graph)
            piece = self._manager.compile(graph, args, index)
            backend = PiecewiseBackend(
                item.graph,
                piece,
                manager=self._manager,
                graph_index=index,
                compile_sizes=self._compile_sizes,
            )
            self.module.__dict__[target] = backend  # found before the submodule of the same name
        else:
            self.module.__dict__[target] = item.graph.forward  # saves `nn.Module.__call__` each step
        return _traced_outputs(item.graph)


def _traced_outputs(graph: fx.GraphModule) -> Any:
    return fx.node.map_arg(output_of(graph.graph).args[0], lambda node: node.meta.get("example_value"))


def fake_inputs(graph: fx.GraphModule) -> list[Any]:
    """What the placeholders of a traced graph stood for: fake tensors, symbolic and plain integers."""
    return [node.meta["example_value"] for node in graph.graph.find_nodes(op="placeholder")]


@contextlib.contextmanager
def mode_of(inputs: Iterable[Any]) -> Iterator[None]:
    """Make the mode that fake inputs belong to the trace's own mode in the body.

    Dynamo before torch 2.9 hands a backend a fresh mode over the same symbols, which does not accept the
    values that it traced.
    """
    context = torch._guards.TracingContext.get()
    before = context.fake_mode
    traced = next((value.fake_mode for value in inputs if isinstance(value, FakeTensor)), before)
    context.fake_mode = traced
    try:
        yield
    finally:
        context.fake_mode = before
