"""`@token_graph`: the module whose call is one recording."""

from __future__ import annotations

import functools
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from atom.graphs import recorder
from atom.graphs.forward_context import get_forward_context
from atom.graphs.token_bucket import TokenGraph

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from atom.graphs.token_bucket import Phase

C = TypeVar("C", bound=type[Any])
_GRAPH = "_atom_token_graph"


@overload
def token_graph(cls: C, /, *, per_phase: bool = False) -> C: ...
@overload
def token_graph(*, per_phase: bool = False) -> Callable[[C], C]: ...
def token_graph(cls: C | None = None, /, *, per_phase: bool = False) -> C | Callable[[C], C]:
    """Marks a module class as a recording unit: the outermost whose forward holds all per-token work of a
    step.

    Its call obeys `ForwardContext.tr_graph`: `None` runs it plainly, `"record"` records its token graph for
    the rows of its first argument, `"replay"` replays it. The phase is the context's. A marked module called
    inside of another's recording is part of that. The graph is outside and compilation inside: `__call__` is
    wrapped, and what it wraps is the module's own call, compiled or not.

    Args:
        per_phase: The forward records different work in prefill and decode.
    """
    if cls is None:
        return functools.partial(token_graph, per_phase=per_phase)
    inner = cls.__call__

    @functools.wraps(inner)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        now = get_forward_context()
        if now.tr_graph is None or recorder.in_progress is not None:
            return inner(self, *args, **kwargs)
        if kwargs:
            args = _positional(self, args, kwargs)
        graph = self.__dict__.get(_GRAPH)
        if graph is None:
            graph = TokenGraph(partial(inner, self), per_phase=per_phase)
            object.__setattr__(self, _GRAPH, graph)
        phase: Phase = "prefill" if now.context is not None and now.context.is_prefill else "decode"
        if now.tr_graph == "record":
            return graph.record(*args, phase=phase)
        return graph.replay(*args, phase=phase)

    cls.__call__ = __call__
    return cls


def token_graph_of(module: nn.Module) -> TokenGraph | None:
    """The token graph of a marked module, once it has been asked to record or replay."""
    graph: TokenGraph | None = module.__dict__.get(_GRAPH)
    return graph


def token_graphs(model: nn.Module) -> dict[str, TokenGraph]:
    """The token graphs in a model by module name; the model itself is `""`."""
    found = {name: token_graph_of(module) for name, module in model.named_modules()}
    return {name: graph for name, graph in found.items() if graph is not None}


def _positional(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments by position, so that a replay compares them with the recording's one by one."""
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    if bound.kwargs:
        raise TypeError(
            f"{type(module).__qualname__} is a recording unit, so its forward cannot have keyword-only "
            f"arguments: "
            f"{', '.join(bound.kwargs)}"
        )
    return bound.args
