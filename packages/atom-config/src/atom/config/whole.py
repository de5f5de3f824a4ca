"""What counts as a whole number in a setting."""

from __future__ import annotations

import operator
from typing import SupportsIndex


def whole_number(value: object) -> int | None:
    """`value` as an int, or None where it is not one; `True` is not one, a NumPy integer is."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    return operator.index(value)
