from __future__ import annotations

import itertools
from typing import Any, Literal

import pytest

from atom.config import CUDAGraphMode
from atom.graphs import DispatchError, ForwardMode

LADDER = [8, 2]  # in no order: decide must not rely on one
PREFILL_LADDER = [16, 64]
MODES = list(CUDAGraphMode)
TR_MODES = (CUDAGraphMode.TR_HYBRID, CUDAGraphMode.FULL_AND_TR_HYBRID)
FULL_MODES = (CUDAGraphMode.FULL, CUDAGraphMode.FULL_DECODE_ONLY)
Size = Literal["below", "at", "above"]


def decide(mode: CUDAGraphMode, **given: Any) -> ForwardMode:
    step: dict[str, Any] = {
        "is_prefill": False,
        "batch_size": 5,
        "num_tokens": 5,
        "max_seqlen_q": 1,
        "enforce_eager": False,
        "request_sizes": LADDER,
        "token_sizes": LADDER,
    }
    return ForwardMode.decide(mode=mode, **(step | given))


def expected_decode(mode: CUDAGraphMode, size: Size, uniform: bool, requests: bool) -> str:
    """The whole policy once more, as a table a person can check."""
    if mode is CUDAGraphMode.NONE or size == "above":
        return "eager"
    if uniform and requests:
        return "request"
    return "token" if mode in TR_MODES else "eager"


@pytest.mark.parametrize(
    ("mode", "enforce_eager", "size", "uniform", "requests"),
    list(itertools.product(MODES, (False, True), ("below", "at", "above"), (True, False), (True, False))),
)
def test_decode_by_mode_and_size(
    mode: CUDAGraphMode, enforce_eager: bool, size: Size, uniform: bool, requests: bool
) -> None:
    bs = {"below": 5, "at": 8, "above": 9}[size]
    # Two query rows for each sequence; a ragged batch lacks one row.
    tokens = bs * 2 if uniform else bs * 2 - 1
    got = decide(
        mode,
        batch_size=bs,
        num_tokens=tokens,
        max_seqlen_q=2,
        enforce_eager=enforce_eager,
        request_sizes=LADDER if requests else [],
        token_sizes=[4, 16],
    )
    kind = "eager" if enforce_eager else expected_decode(mode, size, uniform, requests)
    assert got.kind == kind
    assert got.token_graph is (kind == "token")
    assert got.ubatch_split_bs is None
    assert got.reason
    if kind == "request":
        assert (got.running_bs, got.running_tokens) == (8, 16)
    elif kind == "token":
        assert got.running_tokens == 16
        assert got.running_bs == (8 if uniform else bs)
    else:
        assert (got.running_bs, got.running_tokens) == (bs, tokens)


@pytest.mark.parametrize(
    ("mode", "enforce_eager", "size", "asks"),
    list(itertools.product(MODES, (False, True), ("below", "at", "above"), (True, False))),
)
def test_prefill_by_mode_and_size(mode: CUDAGraphMode, enforce_eager: bool, size: Size, asks: bool) -> None:
    tokens = {"below": 17, "at": 64, "above": 65}[size]
    got = decide(
        mode,
        is_prefill=True,
        batch_size=2,
        num_tokens=tokens,
        max_seqlen_q=tokens - 1,
        enforce_eager=enforce_eager,
        token_sizes=PREFILL_LADDER if asks else [],
    )
    replays = mode in TR_MODES and asks and size != "above" and not enforce_eager
    assert got.kind == ("token" if replays else "eager")
    assert got.running_bs == 2
    assert got.running_tokens == (64 if replays else tokens)


def test_the_phase_is_told_and_never_inferred_from_shapes() -> None:
    one_token_prefill = {"batch_size": 2, "num_tokens": 2, "max_seqlen_q": 1, "is_prefill": True}
    assert decide(CUDAGraphMode.FULL, **one_token_prefill).kind == "eager"
    assert decide(CUDAGraphMode.TR_HYBRID, **one_token_prefill).kind == "token"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"enforce_eager": True}, "enforce_eager"),
        ({"batch_size": 9, "num_tokens": 9}, "9 rows above the largest decode bucket 8"),
        ({"request_sizes": [], "token_sizes": []}, "no decode bucket recorded"),
        ({"is_prefill": True, "token_sizes": []}, "no prefill bucket recorded"),
        ({"batch_size": 0, "num_tokens": 0}, "no rows"),
    ],
)
def test_an_eager_step_says_why(given: dict[str, Any], reason: str) -> None:
    assert decide(CUDAGraphMode.TR_HYBRID, **given).reason == reason


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"is_prefill": True}, "prefill under FULL"),
        ({"batch_size": 9, "num_tokens": 9}, "9 sequences above the largest request bucket 8"),
        ({"num_tokens": 9, "max_seqlen_q": 2}, "ragged decode has no request graph"),
    ],
)
def test_full_says_why_it_ran_eagerly(given: dict[str, Any], reason: str) -> None:
    assert decide(CUDAGraphMode.FULL, **given).reason == reason


class TestDataParallel:
    @pytest.mark.parametrize("mode", TR_MODES + FULL_MODES)
    @pytest.mark.parametrize("loads", [[0, 5], [8, 0, 0, 1], [2, 2], [12, 3], [0, 1, 0, 0]])
    @pytest.mark.parametrize("q", [1, 3])
    def test_every_rank_settles_on_the_same_bucket(
        self, mode: CUDAGraphMode, loads: list[int], q: int
    ) -> None:
        rows = [n * q for n in loads]
        modes = [
            decide(
                mode,
                batch_size=n,
                num_tokens=n * q,
                max_seqlen_q=q,
                token_sizes=[2 * q, 8 * q],
                dp_num_tokens=rows,
            )
            for n in loads
        ]
        assert len({(m.kind, m.running_tokens, m.token_graph, m.ubatch_split_bs) for m in modes}) == 1
        assert modes[0].kind == ("request" if max(loads) <= 8 else "eager")

    def test_a_prefilling_rank_takes_the_group_to_the_bucket_of_the_largest_count(self) -> None:
        given: dict[str, Any] = {"is_prefill": True, "token_sizes": PREFILL_LADDER, "dp_num_tokens": [3, 50]}
        small = decide(CUDAGraphMode.TR_HYBRID, batch_size=1, num_tokens=3, max_seqlen_q=3, **given)
        large = decide(CUDAGraphMode.TR_HYBRID, batch_size=2, num_tokens=50, max_seqlen_q=40, **given)
        assert small.running_tokens == large.running_tokens == 64

    def test_an_idle_rank_obeys_a_ragged_group(self) -> None:
        given: dict[str, Any] = {"max_seqlen_q": 2, "dp_num_tokens": [0, 7], "dp_uniform": False}
        idle = decide(CUDAGraphMode.TR_HYBRID, batch_size=0, num_tokens=0, **given)
        ragged = decide(CUDAGraphMode.TR_HYBRID, batch_size=4, num_tokens=7, **given)
        assert (idle.kind, idle.running_tokens) == (ragged.kind, ragged.running_tokens) == ("token", 8)

    def test_counts_without_this_ranks_own_are_refused(self) -> None:
        with pytest.raises(DispatchError, match="does not hold this rank's own num_tokens 5"):
            decide(CUDAGraphMode.FULL, dp_num_tokens=[1, 2])


class TestTwoBatchOverlap:
    @pytest.mark.parametrize(("bs", "split"), [(1, None), (2, None), (5, 8), (8, 8)])
    def test_a_full_bucket_that_splits_tells_its_split(self, bs: int, split: int | None) -> None:
        got = decide(CUDAGraphMode.FULL, batch_size=bs, num_tokens=bs, enable_tbo="all")
        assert (got.kind, got.ubatch_split_bs) == ("request", split)

    def test_under_tr_hybrid_a_split_decode_runs_eagerly(self) -> None:
        got = decide(CUDAGraphMode.TR_HYBRID, enable_tbo="all")
        assert (got.kind, got.ubatch_split_bs) == ("eager", None)
        assert "two-batch overlap" in got.reason

    @pytest.mark.parametrize("tbo", ["none", "prefill"])
    def test_other_settings_leave_decode_whole(self, tbo: str) -> None:
        assert decide(CUDAGraphMode.FULL, enable_tbo=tbo).ubatch_split_bs is None

    def test_off_the_ladder_or_eager_there_is_no_recorded_split(self) -> None:
        above = decide(CUDAGraphMode.FULL, batch_size=9, num_tokens=9, enable_tbo="all")
        eager = decide(CUDAGraphMode.FULL, enforce_eager=True, enable_tbo="all")
        assert (above.kind, above.ubatch_split_bs) == (eager.kind, eager.ubatch_split_bs) == ("eager", None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 5, "num_tokens": 4}, "every sequence needs at least one row"),
        ({"batch_size": -1, "num_tokens": 0}, "batch_size -1"),
        ({"batch_size": 5, "num_tokens": 6}, "max_seqlen_q 1 cannot give 6 rows in 5 sequences"),
        ({"max_seqlen_q": 0, "batch_size": 0, "num_tokens": 0}, "max_seqlen_q 0"),
    ],
)
def test_numbers_that_describe_no_step_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(DispatchError, match=message):
        decide(CUDAGraphMode.FULL, **given)
