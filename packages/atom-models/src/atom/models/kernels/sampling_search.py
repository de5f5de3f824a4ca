"""Cuts on a list of candidates, found by bisection.

A candidate is its distance in nats below the likeliest token. Its weight `exp(-distance)` is summed in 40-bit
fixed point, so that a sum does not depend on the order of the list.
"""
# ruff: noqa: N803 - compile-time constants are upper case, Triton's own habit

from __future__ import annotations

import triton.language as tl

from atom.models.kernels.jit import jit


@jit
def fixed_point(distance: tl.tensor) -> tl.tensor:
    """`exp(-distance)` in units of 2^-40, int64."""
    return (tl.exp(-distance) * 1099511627776.0).to(tl.int64)


@jit
def find_cut(
    distance: tl.tensor,
    count: tl.tensor,
    reach: tl.tensor,
    target: tl.tensor,
    BY_MASS: tl.constexpr,
    BLOCK: tl.constexpr,
    PASSES: tl.constexpr,
) -> tl.tensor:
    """The least cut up to `reach` whose candidates (`distance <= cut`) reach `target` by count or mass."""
    low = reach * 0 - 1e-6  # nobody is that close
    high = reach
    for _ in tl.range(0, PASSES):
        width = (high - low) / 4
        pivot_1 = low + width
        pivot_2 = low + 2 * width
        pivot_3 = low + 3 * width
        sum_1 = tl.zeros([BLOCK], dtype=tl.int64)
        sum_2 = tl.zeros([BLOCK], dtype=tl.int64)
        sum_3 = tl.zeros([BLOCK], dtype=tl.int64)
        for start in tl.range(0, count, BLOCK):
            place = start + tl.arange(0, BLOCK)
            far = tl.load(distance + place, mask=place < count, other=float("inf"))
            weight = fixed_point(far) if BY_MASS else tl.full([BLOCK], 1, dtype=tl.int64)
            sum_1 += tl.where(far <= pivot_1, weight, 0)
            sum_2 += tl.where(far <= pivot_2, weight, 0)
            sum_3 += tl.where(far <= pivot_3, weight, 0)
        enough_1 = tl.sum(sum_1, axis=0) >= target
        enough_2 = tl.sum(sum_2, axis=0) >= target
        enough_3 = tl.sum(sum_3, axis=0) >= target
        high = tl.where(enough_1, pivot_1, tl.where(enough_2, pivot_2, tl.where(enough_3, pivot_3, high)))
        low = tl.where(enough_1, low, tl.where(enough_2, pivot_1, tl.where(enough_3, pivot_2, pivot_3)))
    return high


@jit
def mass_within(distance: tl.tensor, count: tl.tensor, cut: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """Summed weight of the candidates up to `cut`, in fixed point."""
    mass = tl.zeros([BLOCK], dtype=tl.int64)
    for start in tl.range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        far = tl.load(distance + place, mask=place < count, other=float("inf"))
        mass += tl.where(far <= cut, fixed_point(far), 0)
    return tl.sum(mass, axis=0)
