"""Two-batch overlap: which decode buckets split, and where."""

from __future__ import annotations

MIN_SPLIT_BS = 2
"""A bucket must hold more sequences than this to be worth two microbatches."""


def decode_bucket_splits(running_bs: int) -> bool:
    """Whether a decode bucket of `running_bs` sequences is recorded as two microbatches."""
    return running_bs > MIN_SPLIT_BS


def decode_ubatch_request_ranges(running_bs: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The half-open sequence ranges of the two microbatches of a bucket; the first takes the odd sequence.

    The cut follows the bucket alone, never what was scheduled into it, so that every data-parallel rank cuts
    alike.

    Raises:
        ValueError: the bucket does not split.
    """
    if not decode_bucket_splits(running_bs):
        raise ValueError(
            f"running_bs {running_bs} does not split into microbatches: it must be above {MIN_SPLIT_BS}"
        )
    cut = (running_bs + 1) // 2
    return (0, cut), (cut, running_bs)
