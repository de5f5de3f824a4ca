import pytest

from atom.graphs import decode_bucket_splits, decode_ubatch_request_ranges


@pytest.mark.parametrize(("running_bs", "splits"), [(1, False), (2, False), (3, True), (512, True)])
def test_a_bucket_splits_above_two_sequences(running_bs: int, splits: bool) -> None:
    assert decode_bucket_splits(running_bs) is splits


@pytest.mark.parametrize("running_bs", [3, 4, 7, 8, 513])
def test_the_two_ranges_cover_the_bucket_and_differ_by_at_most_one(running_bs: int) -> None:
    (start, cut), (cut_again, end) = decode_ubatch_request_ranges(running_bs)
    assert (start, cut, end) == (0, cut_again, running_bs)
    assert 0 <= cut - (end - cut) <= 1


def test_a_bucket_that_does_not_split_has_no_ranges() -> None:
    with pytest.raises(ValueError, match="running_bs 2 does not split"):
        decode_ubatch_request_ranges(2)
