"""One compiled piece at run time: which of its compiled forms serves a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from atom.compile.graph_outputs import returning_tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import fx

    from atom.compile.compiler_protocol import CompiledCallable
    from atom.compile.manager import CompiledPiece, CompilerManager

__all__ = ["ConcreteSizeEntry", "PiecewiseBackend"]


@dataclass
class ConcreteSizeEntry:
    """The form of a piece for one specific size."""

    runtime_shape: int
    compiled: bool = False
    runnable: CompiledCallable | None = None


class PiecewiseBackend:
    """Calls the general form of a piece, or, for sizes listed in `compile_sizes`, a form compiled for that
    size when it is first met.

    The first call always takes the general form: it is the one that profiles memory.
    """

    __atom_opaque__ = True
    """A recorder that watches single operations takes a call of this as one operation: its dispatch mode
    has a method `opaque_call(fn, args, kwargs)`, and is handed the call."""

    def __init__(
        self,
        graph: fx.GraphModule,
        piece: CompiledPiece,
        *,
        manager: CompilerManager,
        graph_index: int,
        compile_sizes: Iterable[int] = (),
    ) -> None:
        """
        Args:
            graph: the piece as it was traced.
            piece: its form for any size.
            graph_index: position among the compiled pieces of the model.
            compile_sizes: sizes to specialise for, where the graph has exactly one symbolic size.
        """
        self.graph = graph
        self.graph_index = graph_index
        self.compiled_graph_for_general_shape = piece.call
        self.first_run_finished = False
        self._manager = manager
        self._piece = piece  # keeps it for others of this process
        self._shape_of = _runtime_size_reader(graph)
        self.concrete_size_entries: dict[int, ConcreteSizeEntry] = (
            {} if self._shape_of is None else {size: ConcreteSizeEntry(size) for size in compile_sizes}
        )
        self._unpack = returning_tuple(graph)[1]

    def __call__(self, *args: Any) -> Any:
        if torch._C._len_torch_dispatch_stack():
            recorder = getattr(_get_current_dispatch_mode(), "opaque_call", None)
            if recorder is not None:
                return recorder(self.run, args, {})
        return self.run(*args)

    def run(self, *args: Any) -> Any:
        """One call of the piece, whoever is watching."""
        runnable = self.compiled_graph_for_general_shape
        if self.concrete_size_entries:
            runnable = self._choose(args)
        outputs = runnable(*args)
        return outputs[0] if self._unpack else outputs

    def _choose(self, args: tuple[Any, ...]) -> CompiledCallable:
        general = self.compiled_graph_for_general_shape
        if not self.first_run_finished or self._shape_of is None:
            self.first_run_finished = True
            return general
        entry = self.concrete_size_entries.get(self._shape_of(args))
        if entry is None:
            return general
        if entry.runnable is None:
            entry.runnable = self._specialize(entry.runtime_shape, args)
            entry.compiled = True
        return entry.runnable

    def _specialize(self, size: int, args: tuple[Any, ...]) -> CompiledCallable:
        graph, _ = returning_tuple(self.graph)
        self._manager.new_graph()
        piece = self._manager.compile(graph, args, self.graph_index, size)
        self._manager.save_to_file()
        return piece.call


def _runtime_size_reader(graph: fx.GraphModule) -> Callable[[tuple[Any, ...]], int] | None:
    """How to read a piece's only symbolic size from its arguments; None when it has none, or several.

    A piece need not have an integer argument for it: its size may only show in the shape of a tensor, and a
    piece that touches weights alone has no size at all.
    """
    symbols: set[Any] = set()
    reader: Callable[[tuple[Any, ...]], int] | None = None
    for index, node in enumerate(graph.graph.find_nodes(op="placeholder")):
        value = node.meta.get("example_value")
        for dim, size in [(None, value)] if not isinstance(value, torch.Tensor) else enumerate(value.shape):
            if not isinstance(size, torch.SymInt):
                continue
            symbols |= size.node.expr.free_symbols
            if size.node.expr.is_Symbol and reader is None:
                reader = _reader(index, dim)
    return reader if len(symbols) == 1 else None


def _reader(index: int, dim: int | None) -> Callable[[tuple[Any, ...]], int]:
    if dim is None:
        return lambda args: int(args[index])
    return lambda args: int(args[index].shape[dim])
