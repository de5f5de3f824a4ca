"""Integer arithmetic of tile shapes, on the host's hot path (Triton's own cost microseconds)."""

from __future__ import annotations

__all__ = ["ceil_div", "next_power_of_2"]


def ceil_div(number: int, size: int) -> int:
    """How many pieces of `size` cover `number`."""
    return -(-number // size)


def next_power_of_2(number: int) -> int:
    """The least power of two that is not below `number` (1 for 0)."""
    return 1 << (number - 1).bit_length() if number > 1 else 1
