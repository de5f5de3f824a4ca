"""Conditions on sizes as plain data."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from atom.compile.size_guards import conditions_on, encode, exactly, holds

S, T = sympy.Symbol("s77", integer=True, positive=True), sympy.Symbol("s3", integer=True, positive=True)
NAMES = {S: "s0", T: "s1"}

EXPRESSIONS = [
    sympy.Ne(S, 64),
    sympy.Eq(S, 2 * T),
    sympy.Le(S * 576, 2**31 - 1),
    sympy.Eq(FloorDiv(S, 2), 3),
    sympy.Ne(Mod(S, 8), 0),
    sympy.Eq(PythonMod(S, 3), 1),
    sympy.And(S > 2, T < 9),
    sympy.Or(S < 5, sympy.Ge(T, 4)),
    sympy.Not(sympy.Eq(S, T)),
    sympy.Gt(sympy.Max(S, T), 6),
    sympy.Lt(S**2 + 1, 40),
]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=str)
def test_a_condition_says_what_its_expression_says_after_a_round_trip(expression: Any) -> None:
    condition = json.loads(json.dumps(encode(expression, NAMES)))
    for s in range(1, 12):
        for t in range(1, 8):
            expected = bool(expression.xreplace({S: sympy.Integer(s), T: sympy.Integer(t)}))
            assert holds(condition, {"s0": s, "s1": t}) == expected


def test_trivial_conditions_are_left_out_and_the_order_is_fixed() -> None:
    hints = {"s0": 4, "s1": 2}
    found = conditions_on([sympy.true, sympy.Ne(T, 9), sympy.Ne(S, 9), sympy.Ne(T, 9)], NAMES, hints)
    assert found == [("Unequality", "s0", 9), ("Unequality", "s1", 9)]


@pytest.mark.parametrize("unknown", [sympy.Gt(sympy.sin(S), 0), sympy.Ne(sympy.Symbol("u0"), 1)], ids=str)
def test_what_cannot_be_expressed_leaves_the_traced_sizes_only(unknown: Any) -> None:
    hints = {"s0": 4, "s1": 2}
    assert conditions_on([unknown], NAMES, hints) == exactly(hints)
    assert all(holds(condition, hints) for condition in exactly(hints))
    assert not all(holds(condition, {"s0": 5, "s1": 2}) for condition in exactly(hints))


def test_foreign_data_is_not_evaluated() -> None:
    with pytest.raises(KeyError):
        holds(("__import__", "os"), {"os": 1})
