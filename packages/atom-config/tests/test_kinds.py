from __future__ import annotations

from typing import Any

import pytest

from atom.config import ConfigError, CUDAGraphMode
from atom.config.kinds import (
    CompileSizes,
    Integer,
    Kind,
    Level,
    Mode,
    Number,
    Options,
    Sizes,
    Switch,
    Text,
    TextList,
    Word,
)


@pytest.mark.parametrize(
    ("kind", "text", "meant"),
    [
        (Integer(), "12", 12),
        (Integer(optional=True), "None", None),
        (Number(), "0.5", 0.5),
        (Switch(), "true", True),
        (Switch(), "No", False),
        (Word(words=("none", "all")), "ALL", "all"),
        (Word(words=("none", "all")), "none", "none"),
        (Kind(), "a/b", "a/b"),
        (Text(), "", ""),
        (TextList(), "ns.a, ns.b", ["ns.a", "ns.b"]),
        (TextList(), "", []),
        (Options(), '{"max_autotune": true}', {"max_autotune": True}),
        (Level(), "dynamo_once", 2),
        (Level(), "2", 2),
        (Mode(optional=True), "full", CUDAGraphMode.FULL),
        (Mode(optional=True), "None", CUDAGraphMode.NONE),
        (Sizes(), "8, 1,4", [1, 4, 8]),
        (CompileSizes(), "cudagraph_capture_sizes,8", [8, "cudagraph_capture_sizes"]),
    ],
)
def test_text_from_a_command_line_means_a_value(kind: Kind, text: str, meant: Any) -> None:
    assert kind.parse("--flag", text) == meant


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Integer(), "twelve"),
        (Integer(), "none"),
        (Integer(), "0"),
        (Number(), "nan"),
        (Number(), "much"),
        (Switch(), "maybe"),
        (Word(words=("a",)), "b"),
        (Kind(), "  "),
        (Text(), "a\0b"),
        (TextList(), "a,,b"),
        (TextList(), "a,a"),
        (Options(), "{"),
        (Options(), "[1]"),
        (Level(), "9"),
        (Mode(), "half"),
        (Sizes(), "1,x"),
        (Sizes(), ""),
        (CompileSizes(), "8,all"),
    ],
)
def test_text_that_means_nothing_is_refused_with_flag_and_what_is_allowed(kind: Kind, text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--flag = .* is not allowed; allowed: "):
        kind.parse("--flag", text)


def test_none_passes_only_where_it_is_allowed() -> None:
    assert Integer(optional=True).check("f", None) is None
    assert Integer(optional=True).allowed.endswith("or none")
    with pytest.raises(ConfigError):
        Integer().check("f", None)


def test_an_integer_of_another_library_is_stored_as_an_int() -> None:
    class Foreign:
        def __index__(self) -> int:
            return 7

    checked = Integer().check("f", Foreign())
    assert type(checked) is int
    assert checked == 7
