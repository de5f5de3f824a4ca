"""One trace of a forward: the bytecode it became, and the calls it may serve."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atom.compile.same_computation import same_computation
from atom.compile.size_guards import Condition, holds

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from torch import fx

__all__ = ["DynamicSizes", "TracedForward"]

DynamicSizes = dict[tuple[str, int], int]
"""`(argument, dimension)` -> size, for the dynamic dimensions of one call."""


@dataclass
class TracedForward:
    """What Dynamo and the backend made of a forward once."""

    call: Callable[..., Any]
    """Takes the module and the forward's arguments."""
    code: CodeType
    pattern: dict[tuple[str, int], Condition] = field(default_factory=dict)
    """`(argument, dimension)` -> the traced size: a symbol's name, a number, or an expression."""
    conditions: list[Condition] = field(default_factory=list)
    """What tracing and compiling assumed about the symbols."""
    at_least: dict[str, int] = field(default_factory=dict)
    """Symbol -> the smallest size that was considered: tracing treats 0 and 1 as constants."""
    graph: fx.Graph | None = None
    """The traced graph; None when the forward computes nothing."""
    region_inside: str | None = None
    """An op implemented by an eager region that lies inside one compiled callable."""
    _small: set[tuple[tuple[str, int], ...]] = field(default_factory=set)

    def serves(self, sizes: DynamicSizes) -> bool:
        """Whether a call of these sizes may use this trace."""
        bound = self.bind(sizes)
        if bound is None or not self._meets(bound):
            return False
        small = any(bound.get(name, low) < low for name, low in self.at_least.items())
        return not small or tuple(sorted(bound.items())) in self._small

    def could_serve(self, sizes: DynamicSizes) -> bool:
        """The same, with sizes of 0 and 1 for which that has still to be found out."""
        bound = self.bind(sizes)
        return bound is not None and self._meets(bound)

    def _meets(self, bound: dict[str, int]) -> bool:
        return all(holds(condition, bound) for condition in self.conditions)

    def bind(self, sizes: DynamicSizes) -> dict[str, int] | None:
        """The symbols' sizes in a call of `sizes`; None when it cannot have come from this trace."""
        bound: dict[str, int] = {}
        for place, traced in self.pattern.items():
            size = sizes.get(place)
            if size is not None and isinstance(traced, str) and bound.setdefault(traced, size) != size:
                return None
        for place, traced in self.pattern.items():
            size = sizes.get(place)
            if size is not None and not isinstance(traced, str) and holds(traced, bound) != size:
                return None
        return bound

    def computes_as(self, exact: TracedForward, sizes: DynamicSizes) -> bool:
        """Whether this trace, at `sizes`, is operation for operation what was traced at those very sizes."""
        bound = self.bind(sizes)
        if bound is None or self.graph is None or exact.graph is None:
            return False
        return same_computation(self.graph, exact.graph, bound)

    def allow_small(self, sizes: DynamicSizes) -> None:
        """Serve these sizes of 0 or 1 too: it was found that they are computed the same way."""
        bound = self.bind(sizes)
        if bound is not None:
            self._small.add(tuple(sorted(bound.items())))
