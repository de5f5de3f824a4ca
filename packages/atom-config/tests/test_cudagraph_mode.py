from __future__ import annotations

import pickle

import pytest

from atom.config import ConfigError, CUDAGraphMode

NONE, TR_HYBRID, FULL = CUDAGraphMode.NONE, CUDAGraphMode.TR_HYBRID, CUDAGraphMode.FULL
FULL_DECODE_ONLY, BOTH = CUDAGraphMode.FULL_DECODE_ONLY, CUDAGraphMode.FULL_AND_TR_HYBRID


def test_values_are_the_guides() -> None:
    assert {mode.name: mode.value for mode in CUDAGraphMode} == {
        "NONE": 0,
        "TR_HYBRID": 1,
        "FULL": 2,
        "FULL_DECODE_ONLY": (2, 0),
        "FULL_AND_TR_HYBRID": (2, 1),
    }


@pytest.mark.parametrize(
    ("mode", "decode", "mixed", "separate", "full", "hybrid", "highest"),
    [
        (NONE, NONE, NONE, False, False, False, NONE),
        (TR_HYBRID, TR_HYBRID, TR_HYBRID, False, False, True, TR_HYBRID),
        (FULL, FULL, FULL, False, True, False, FULL),
        (FULL_DECODE_ONLY, FULL, NONE, True, True, False, FULL),
        (BOTH, FULL, TR_HYBRID, True, True, True, FULL),
    ],
)
def test_helpers_return_members_and_answers_of_the_guide(
    mode: CUDAGraphMode,
    decode: CUDAGraphMode,
    mixed: CUDAGraphMode,
    separate: bool,
    full: bool,
    hybrid: bool,
    highest: CUDAGraphMode,
) -> None:
    assert mode.decode_mode() is decode
    assert mode.mixed_mode() is mixed
    assert mode.separate_routine() is separate
    assert mode.has_full_cudagraphs() is full
    assert mode.uses_tr_hybrid() is hybrid
    assert mode.max_cudagraph_mode() is highest


@pytest.mark.parametrize("mode", list(CUDAGraphMode))
def test_a_mode_is_meant_by_member_value_and_name_in_any_case(mode: CUDAGraphMode) -> None:
    spellings = (mode, mode.value, mode.name, mode.name.lower(), mode.name.replace("_", "-").title())
    assert {CUDAGraphMode.parse(spelling) for spelling in spellings} == {mode}


def test_a_pair_that_came_from_json_is_a_tuple_mode() -> None:
    assert CUDAGraphMode.parse([2, 1]) is BOTH


@pytest.mark.parametrize("wrong", [3, -1, True, (0, 2), (2,), (2.0, 0), "half", "", "1", None, 1.0])
def test_anything_else_is_refused_with_the_names_that_are_allowed(wrong: object) -> None:
    with pytest.raises(ConfigError, match="NONE, TR_HYBRID, FULL, FULL_DECODE_ONLY, FULL_AND_TR_HYBRID"):
        CUDAGraphMode.parse(wrong)


@pytest.mark.parametrize("mode", list(CUDAGraphMode))
def test_members_keep_their_identity_through_pickle(mode: CUDAGraphMode) -> None:
    assert pickle.loads(pickle.dumps(mode)) is mode
