from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.config import ConfigError, default_ladder, ladder_within, prefill_ladder
from atom.config.capture_sizes import checked_compile_sizes, checked_sizes

positive = st.integers(min_value=1, max_value=3000)


def test_the_default_ladder_is_the_guides_pattern() -> None:
    assert default_ladder(512) == list(range(1, 9)) + list(range(16, 513, 16))


@given(largest=st.integers(min_value=8, max_value=3000))
def test_from_eight_on_the_ladder_is_the_guides_formula(largest: int) -> None:
    assert default_ladder(largest) == list(range(1, 9)) + list(range(16, largest + 1, 16))


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1, [1]),
        (2, [1, 2]),
        (3, [1, 2, 3]),
        (4, [1, 2, 3, 4]),
        (5, [1, 2, 3, 4, 5]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 12]),
        (20, [1, 2, 3, 4, 5, 6, 7, 8, 16, 20]),
        (33, [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 33]),
        (513, [*default_ladder(512), 513]),
    ],
)
def test_a_default_ladder_is_cut_to_the_limit_and_ends_with_it(limit: int, expected: list[int]) -> None:
    assert ladder_within(512, limit) == expected


@given(largest=positive, limit=positive)
def test_a_cut_ladder_keeps_its_promises_for_every_limit(largest: int, limit: int) -> None:
    ladder = ladder_within(largest, limit)
    assert ladder == sorted(set(ladder))
    assert ladder[0] >= 1
    assert ladder[-1] == limit
    assert set(ladder) <= {*default_ladder(largest), limit}
    assert {size for size in default_ladder(largest) if size <= limit} <= set(ladder)


@given(limit=st.integers(min_value=1, max_value=100_000))
def test_a_prefill_ladder_ends_at_the_limit_or_1024_and_pads_less_than_a_quarter(limit: int) -> None:
    ladder = prefill_ladder(limit)
    assert ladder == sorted(set(ladder))
    assert ladder[0] >= 1
    assert ladder[-1] == min(limit, 1024)
    for below, bucket in zip([0, *ladder], ladder, strict=False):
        fewest_rows = below + 1
        assert bucket - fewest_rows < max(16, bucket / 4)


@given(sizes=st.lists(positive, min_size=1, unique=True))
def test_a_listed_ladder_comes_back_sorted(sizes: list[int]) -> None:
    assert checked_sizes("f", sizes, limit=3000) == sorted(sizes)


@given(sizes=st.lists(positive, min_size=1, unique=True), data=st.data())
def test_a_repeated_or_too_small_or_too_large_entry_is_refused(sizes: list[int], data: st.DataObject) -> None:
    bad = data.draw(st.sampled_from([sizes[0], 0, -sizes[0], max(sizes) + 1]))
    position = data.draw(st.integers(min_value=0, max_value=len(sizes)))
    with pytest.raises(ConfigError):
        checked_sizes("f", [*sizes[:position], bad, *sizes[position:]], limit=max(sizes))


@pytest.mark.parametrize("wrong", [[], [0], [4, 4], [-1], [1.5], ["8"], [True], 8, "8", None, {8}])
def test_a_list_that_is_no_ladder_is_refused_naming_field_and_value(wrong: object) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_sizes("CompilationConfig.cudagraph_capture_sizes", wrong)
    assert caught.value.value == wrong
    assert str(caught.value).startswith(f"CompilationConfig.cudagraph_capture_sizes = {wrong!r}")


def test_a_size_above_the_limit_names_the_limit() -> None:
    with pytest.raises(ConfigError, match=r"f = \[16\] .* from 1 to 12 \(max_num_seqs\)"):
        checked_sizes("f", [16], limit=12, limit_name="max_num_seqs")


def test_the_callers_list_is_not_changed() -> None:
    asked = [8, 1, 4]
    assert checked_sizes("f", asked) == [1, 4, 8]
    assert asked == [8, 1, 4]


def test_compile_sizes_keep_the_word_behind_the_rows() -> None:
    assert checked_compile_sizes("f", ["cudagraph_capture_sizes", 64, 8]) == [
        8,
        64,
        "cudagraph_capture_sizes",
    ]
    assert checked_compile_sizes("f", []) == []


@pytest.mark.parametrize(
    "wrong", [["all"], [0], [8, 8], ["cudagraph_capture_sizes"] * 2, [None], "cudagraph_capture_sizes", 8]
)
def test_compile_sizes_that_mean_nothing_are_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match='the word "cudagraph_capture_sizes"'):
        checked_compile_sizes("f", wrong)
