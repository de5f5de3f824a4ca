"""Counting what compilation did."""

from __future__ import annotations

from atom.compile import CompilationCounter


def test_what_happens_inside_is_counted_apart() -> None:
    counter = CompilationCounter(num_pieces=3)
    with counter.counted() as inside:
        counter.num_pieces += 2
        counter.num_cache_hits += 1
    assert inside == CompilationCounter(num_pieces=2, num_cache_hits=1)
    assert counter.num_pieces == 5
    counter.reset()
    assert counter == CompilationCounter()
