"""Random numbers that depend on a request's seed and place alone.

A counter-based generator: the number for a token is a hash of the request's seed and the token's position.
What runs beside the request, in which order, and whether it was interrupted make no difference; and since the
numbers are inputs of a step, a recorded graph cannot freeze them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_BITS = 52
"""Random bits a number has: fewer than a float64's 53, so that a product with a total stays below the
total."""


def uniforms(
    seeds: np.ndarray[Any, np.dtype[np.uint64]], positions: np.ndarray[Any, Any]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One number in [0, 1) for each pair of a 64-bit seed and a position, float64 `[n]`."""
    with np.errstate(over="ignore"):
        # The seed is mixed on its own first: neighbouring seeds must not give shifted copies of one sequence.
        bits = _mix(_mix(seeds + _GOLDEN) + positions.astype(np.uint64) * _GOLDEN)
    return (bits >> np.uint64(64 - _BITS)).astype(np.float64) * 2.0**-_BITS


def derived_seed(seed: int, index: int) -> int:
    """A seed for the `index`-th request that brings none, from the run's own seed."""
    with np.errstate(over="ignore"):
        start = np.array([seed & (2**64 - 1)], dtype=np.uint64)
        return int(_mix(_mix(start) ^ _mix(np.array([index + 1], dtype=np.uint64) * _MIX_1))[0])


def _mix(x: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
    2014)."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))
