from __future__ import annotations

import pytest

from atom.config import CompilationLevel, ConfigError


def test_levels_have_the_guides_numbers_and_order() -> None:
    assert [(level.name, int(level)) for level in CompilationLevel] == [
        ("NO_COMPILATION", 0),
        ("DYNAMO_AS_IS", 1),
        ("DYNAMO_ONCE", 2),
        ("PIECEWISE", 3),
    ]
    assert CompilationLevel.PIECEWISE >= CompilationLevel.DYNAMO_ONCE


@pytest.mark.parametrize("meant", [3, "3", " 3 ", "piecewise", "PIECEWISE", CompilationLevel.PIECEWISE])
def test_a_level_is_meant_by_number_or_name(meant: object) -> None:
    assert CompilationLevel.parse(meant) is CompilationLevel.PIECEWISE


def test_a_name_may_be_written_with_dashes() -> None:
    assert CompilationLevel.parse("dynamo-as-is") is CompilationLevel.DYNAMO_AS_IS


@pytest.mark.parametrize("wrong", [-1, 4, True, False, 1.0, "4", "-1", "fast", "", "²", None, [3]])
def test_anything_else_is_refused_naming_field_value_and_what_is_allowed(wrong: object) -> None:
    with pytest.raises(ConfigError) as caught:
        CompilationLevel.parse(wrong, field="--level")
    assert str(caught.value) == (
        f"--level = {wrong!r} is not allowed; allowed: "
        "0 (NO_COMPILATION), 1 (DYNAMO_AS_IS), 2 (DYNAMO_ONCE), 3 (PIECEWISE)"
    )
