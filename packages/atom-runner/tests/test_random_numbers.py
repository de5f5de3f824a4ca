"""Random numbers by seed and place."""

from __future__ import annotations

import numpy as np

from atom.runner.random_numbers import derived_seed, uniforms


def numbers(seeds, positions):
    return uniforms(np.array(seeds, dtype=np.uint64), np.array(positions, dtype=np.int64))


def test_each_number_depends_on_its_own_seed_and_position_alone():
    together = numbers([1, 2, 3], [4, 5, 6])
    assert [float(numbers([s], [p])[0]) for s, p in ((1, 4), (2, 5), (3, 6))] == together.tolist()


def test_they_are_spread_evenly_over_seeds_and_over_positions():
    for drawn in (numbers(range(20_000), [3] * 20_000), numbers([3] * 20_000, range(20_000))):
        assert drawn.min() >= 0
        assert drawn.max() < 1
        counts, _ = np.histogram(drawn, bins=20, range=(0, 1))
        assert np.abs(counts - 1000).max() < 160  # 5 standard deviations
        assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.035


def test_neighbouring_seeds_are_not_shifted_copies():
    first, second = numbers([1] * 200, range(200)), numbers([2] * 200, range(200))
    for shift in range(-5, 6):
        assert not np.intersect1d(first, np.roll(second, shift)).size


def test_the_largest_number_times_a_total_stays_below_the_total():
    largest = (2**52 - 1) * 2.0**-52
    totals = np.random.default_rng(0).uniform(0.1, 2, 10_000)
    assert (totals * largest < totals).all()


def test_derived_seeds_differ_by_run_and_by_request():
    assert len({derived_seed(run, index) for run in range(50) for index in range(50)}) == 2500
    assert derived_seed(3, 7) == derived_seed(3, 7)
    assert 0 <= derived_seed(2**63 - 1, 0) < 2**64
