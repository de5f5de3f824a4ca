"""Conditions on sizes under which compiled code is valid, kept as plain data.

While a model is traced and compiled, torch records what it assumed about symbolic sizes ("rows differ from
64", "rows times 576 fit 32 bits"). Compiled bytecode that is called directly skips Dynamo's guards, and an
artifact read from a cache has lost them, so they are kept here as nested tuples of names and integers:
they can be stored with an artifact, read back without executing anything, and asked about any size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import sympy  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Condition", "conditions_on", "encode", "exactly", "holds"]

Condition = int | float | bool | str | tuple[Any, ...]
"""A number, the name of a size, or `(operation, *operands)`."""


class UnknownOperationError(ValueError):
    """An expression uses something this module cannot evaluate."""


def _floor_div(a: float, b: float) -> float:
    return a // b


def _mod(a: float, b: float) -> float:
    return a % b


def _ceil_div(a: float, b: float) -> float:
    return -((-a) // b)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda *terms: sum(terms),
    "Mul": lambda *factors: math.prod(factors),
    "Pow": pow,
    "PowByNatural": pow,
    "Max": max,
    "Min": min,
    "Abs": abs,
    "FloorDiv": _floor_div,
    "CleanDiv": _floor_div,
    "CeilDiv": _ceil_div,
    "Mod": _mod,
    "PythonMod": _mod,
    "ModularIndexing": lambda base, divisor, modulus: (base // divisor) % modulus,
    "IntTrueDiv": lambda a, b: a / b,
    "FloatTrueDiv": lambda a, b: a / b,
    "ToFloat": float,
    "TruncToInt": math.trunc,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "Where": lambda condition, yes, no: yes if condition else no,
    "Equality": lambda a, b: a == b,
    "Unequality": lambda a, b: a != b,
    "StrictLessThan": lambda a, b: a < b,
    "LessThan": lambda a, b: a <= b,
    "StrictGreaterThan": lambda a, b: a > b,
    "GreaterThan": lambda a, b: a >= b,
    "And": lambda *parts: all(parts),
    "Or": lambda *parts: any(parts),
    "Not": lambda part: not part,
}


def encode(expression: Any, names: Mapping[sympy.Symbol, str]) -> Condition:
    """`expression` as plain data, its symbols called as `names` says.

    Raises:
        UnknownOperationError: a symbol without name, or an operation that `holds` cannot evaluate.
    """
    if isinstance(expression, bool | sympy.logic.boolalg.BooleanAtom):
        return bool(expression)
    if isinstance(expression, int | sympy.Integer):
        return int(expression)
    if isinstance(expression, float | sympy.Float | sympy.Rational):
        return float(expression)
    if isinstance(expression, sympy.Symbol):
        if expression not in names:
            raise UnknownOperationError(f"symbol {expression} is none of {sorted(names.values())}")
        return names[expression]
    operation = type(expression).__name__
    if operation not in _OPERATIONS:
        raise UnknownOperationError(f"operation {operation} in {expression}")
    return (operation, *(encode(argument, names) for argument in expression.args))


def exactly(sizes: Mapping[str, int]) -> list[Condition]:
    """The conditions that only `sizes` meet: what is left when an assumption cannot be expressed."""
    return [("Equality", name, size) for name, size in sorted(sizes.items())]


def conditions_on(
    expressions: Iterable[Any], names: Mapping[sympy.Symbol, str], hints: Mapping[str, int]
) -> list[Condition]:
    """`expressions` as conditions without the trivially true ones, in a fixed order.

    Args:
        hints: the sizes that were traced with. If one expression cannot be encoded, nothing is known about
            other sizes, and the conditions are `exactly(hints)`.
    """
    try:
        encoded = {encode(expression, names) for expression in expressions}
    except UnknownOperationError:
        return exactly(hints)
    return sorted(encoded - {True}, key=repr)


def holds(condition: Condition, sizes: Mapping[str, int]) -> Any:
    """The value of `condition` at `sizes`; for a comparison, whether it is met.

    Raises:
        KeyError: an operation or a size that is not known.
    """
    if isinstance(condition, str):
        return sizes[condition]
    if isinstance(condition, tuple | list):
        operation, *operands = condition
        return _OPERATIONS[operation](*(holds(operand, sizes) for operand in operands))
    return condition
