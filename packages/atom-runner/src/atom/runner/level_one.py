"""Compilation level 1: the runner traces the model, and whatever cannot be traced is an error.

Models compile themselves from level 2 on. At level 1 they leave it to the runner, which takes the `forward`
of each module that would: never its call, which a recording unit wraps from the outside.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atom.config import CompilationLevel

if TYPE_CHECKING:
    from collections.abc import Callable


def trace_forwards(model: Any, level: int) -> list[nn.Module]:
    """Put Dynamo in front of the forwards that support compilation, at level 1 only; returns their modules.

    The graph runs as traced, without code generation. Sizes are dynamic from the start, so that a batch size
    is not a new trace.
    """
    if level != CompilationLevel.DYNAMO_AS_IS or not isinstance(model, nn.Module):
        return []
    # Only here: importing the compiler takes longer than loading a small model, and level 0 has no use for
    # it.
    from atom.compile import TorchCompileWrapperWithCustomDispatcher

    traced = [m for m in model.modules() if isinstance(m, TorchCompileWrapperWithCustomDispatcher)]
    units: list[nn.Module] = [m for m in traced if isinstance(m, nn.Module)] or [model]
    for unit in units:
        unit.forward = _traced(unit.forward)
    return units


def _traced(forward: Callable[..., Any]) -> Callable[..., Any]:
    compiled = torch.compile(_with_own_code(forward), backend="eager", fullgraph=True, dynamic=True)

    @functools.wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        # A tape sees ops, and Dynamo refuses to run beneath it. The traced graph has the very ops of the
        # forward.
        if torch._C._len_torch_dispatch_stack():
            return forward(*args, **kwargs)
        return compiled(*args, **kwargs)

    return call


def _with_own_code(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same method over a copy of its code: Dynamo allows few traces of a code object, and all models of a
    class share theirs."""
    function = getattr(forward, "__func__", None)
    if not isinstance(function, types.FunctionType):
        return forward
    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return types.MethodType(copy, forward.__self__)  # type: ignore[attr-defined]
