"""The traces of one model instance, and which of them serves a call."""

from __future__ import annotations

import inspect
import logging
import types
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from atom.compile.backend import VllmBackend
from atom.compile.errors import DynamicDimsError
from atom.compile.tracing import trace_forward

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx, nn

    from atom.compile.traced_forward import DynamicSizes, TracedForward
    from atom.config import Config

__all__ = ["CompiledForward"]

logger = logging.getLogger(__name__)

STAND_IN_SIZE = 24
"""Traced with instead of a size of 0 or 1, which tracing would take for a constant. No model dimension that
a forward is likely to compare it with, and a multiple of 8 as compilers like it."""


class CompiledForward:
    """Finds the trace that serves a call, and makes it when there is none.

    One trace for any size is the rule. Another one is made when an argument changes in kind (number format,
    rank, fixed dimension, layout, None or not, a plain value), when sizes are outside of what the first
    trace assumed, and for sizes of 0 or 1 where the forward computes something else there.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        atom_config: Config,
        prefix: str,
        dynamic_dims: Mapping[str, tuple[int, ...]],
    ) -> None:
        function = inspect.unwrap(forward)
        if not isinstance(function, types.FunctionType):
            raise DynamicDimsError(f"{forward!r} is not a function that can be traced")
        self._function = function
        self._dims = dynamic_dims
        self._names = list(inspect.signature(function).parameters)[1:]
        self._backend = VllmBackend(atom_config, prefix)
        self._served: dict[Any, TracedForward] = {}
        self._kinds: dict[Any, list[TracedForward]] = {}
        self.traces: list[TracedForward] = []
        self._said_uncompiled = False

    @property
    def codes(self) -> list[types.CodeType]:
        return [trace.code for trace in self.traces]

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = (
            tuple([_exact_kind(value) for value in args]),
            tuple([(name, _exact_kind(value)) for name, value in kwargs.items()]) if kwargs else (),
        )
        trace = self._served.get(key)
        if trace is None:
            trace = self._served[key] = self._find(module, args, kwargs)
        if trace.region_inside is not None and _recorder_watches():
            return self._uncompiled(trace, module, args, kwargs)
        return trace.call(module, *args, **kwargs)

    def _uncompiled(
        self, trace: TracedForward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not self._said_uncompiled:
            self._said_uncompiled = True
            logger.warning(
                "%s is recorded uncompiled: at level 2 its eager region %s lies inside one compiled "
                "callable; level 3 compiles around it",
                type(module).__qualname__,
                trace.region_inside,
            )
        return self._function(module, *args, **kwargs)

    def _find(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TracedForward:
        named = dict(zip(self._names, args, strict=False)) | kwargs
        kind = tuple((name, self._general_kind(name, value)) for name, value in sorted(named.items()))
        sizes = self._sizes_of(named)
        for trace in self._kinds.get(kind, ()):
            if trace.serves(sizes):
                return trace
        if all(size >= 2 for size in sizes.values()):
            return self._keep(kind, self._trace(module, args, kwargs, self._dims))
        return self._find_small(module, args, kwargs, kind, sizes)

    def _find_small(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], kind: Any, sizes: DynamicSizes
    ) -> TracedForward:
        traces = self._kinds.setdefault(kind, [])
        stand_in = {place: size if size >= 2 else STAND_IN_SIZE for place, size in sizes.items()}
        if not any(trace.could_serve(sizes) or trace.serves(stand_in) for trace in traces):
            resized_args = tuple(
                self._resized(name, value) for name, value in zip(self._names, args, strict=False)
            )
            resized_kwargs = {name: self._resized(name, value) for name, value in kwargs.items()}
            self._keep(kind, self._trace(module, resized_args, resized_kwargs, self._dims))
        exact_dims = self._dims_from_two(sizes)
        probe = trace_forward(module, self._function, args, kwargs, dynamic=exact_dims, backend=_uncompiled)
        for trace in traces:
            if trace.could_serve(sizes) and trace.computes_as(probe, sizes):
                trace.allow_small(sizes)
                return trace
        logger.info("%s computes something else at sizes %s", type(module).__qualname__, sizes)
        return self._keep(kind, self._trace(module, args, kwargs, exact_dims))

    def _trace(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dims: Mapping[str, Sequence[int]],
    ) -> TracedForward:
        conditions = self._backend.compiler_manager.size_conditions
        before = len(conditions)
        trace = trace_forward(
            module,
            self._function,
            args,
            kwargs,
            dynamic=dims,
            backend=self._backend,
            guards_added=lambda: conditions[before:],
        )
        trace.region_inside = self._backend.region_inside
        self._backend.dump_code(self._function.__code__, trace.code)
        return trace

    def _keep(self, kind: Any, trace: TracedForward) -> TracedForward:
        self.traces.append(trace)
        self._kinds.setdefault(kind, []).append(trace)
        return trace

    def _sizes_of(self, named: Mapping[str, Any]) -> DynamicSizes:
        return {
            (name, dim): named[name].shape[dim]
            for name, dims in self._dims.items()
            if isinstance(named.get(name), torch.Tensor)
            for dim in dims
        }

    def _dims_from_two(self, sizes: DynamicSizes) -> dict[str, list[int]]:
        dims: dict[str, list[int]] = {}
        for (name, dim), size in sizes.items():
            if size >= 2:
                dims.setdefault(name, []).append(dim)
        return dims

    def _resized(self, name: str, value: Any) -> Any:
        dims = self._dims.get(name, ())
        if not isinstance(value, torch.Tensor) or all(value.shape[dim] >= 2 for dim in dims):
            return value
        shape = list(value.shape)
        for dim in dims:
            shape[dim] = shape[dim] if shape[dim] >= 2 else STAND_IN_SIZE
        return value.new_zeros(shape)

    def _general_kind(self, name: str, value: Any) -> Any:
        """What of an argument a trace for any size is still bound to."""
        if not isinstance(value, torch.Tensor):
            return _exact_kind(value)
        dynamic = {dim % value.ndim for dim in self._dims.get(name, ())} if value.ndim else set()
        shape = tuple(None if dim in dynamic else size for dim, size in enumerate(value.shape))
        return (value.dtype, value.device, shape, value.is_contiguous() or value.stride())


def _exact_kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.shape, value.device, value.is_contiguous() or value.stride())
    if value is None or isinstance(value, bool | int | float | str):
        return (type(value), value)
    return type(value)


def _recorder_watches() -> bool:
    return bool(torch._C._len_torch_dispatch_stack()) and hasattr(_get_current_dispatch_mode(), "opaque_call")


def _uncompiled(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    return gm.forward
