"""Which calls a trace serves."""

from __future__ import annotations

from typing import Any

from atom.compile.traced_forward import TracedForward


def nothing(*args: Any) -> None:
    return None


def traced(pattern: Any, conditions: Any = (), at_least: Any = None) -> TracedForward:
    return TracedForward(nothing, nothing.__code__, pattern, list(conditions), at_least or {})


def test_equal_symbols_need_equal_sizes() -> None:
    trace = traced({("ids", 0): "s0", ("pos", 0): "s0"})
    assert trace.serves({("ids", 0): 5, ("pos", 0): 5})
    assert not trace.serves({("ids", 0): 5, ("pos", 0): 6})


def test_expressions_and_numbers_need_to_agree() -> None:
    trace = traced({("a", 0): "s0", ("b", 0): ("Mul", 2, "s0"), ("c", 0): 4})
    assert trace.serves({("a", 0): 3, ("b", 0): 6, ("c", 0): 4})
    assert not trace.serves({("a", 0): 3, ("b", 0): 7, ("c", 0): 4})
    assert not trace.serves({("a", 0): 3, ("b", 0): 6, ("c", 0): 5})


def test_conditions_bound_the_sizes() -> None:
    trace = traced({("a", 0): "s0"}, [("StrictLessThan", "s0", 10)])
    assert trace.serves({("a", 0): 9})
    assert not trace.serves({("a", 0): 10})


def test_sizes_of_0_and_1_are_served_once_allowed() -> None:
    trace = traced({("a", 0): "s0"}, at_least={"s0": 2})
    one = {("a", 0): 1}
    assert trace.could_serve(one)
    assert not trace.serves(one)
    trace.allow_small(one)
    assert trace.serves(one)
    assert not trace.serves({("a", 0): 0})
    assert not trace.computes_as(trace, one)  # nothing is known without graphs
