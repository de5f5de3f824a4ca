from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from atom.runner.cli.prompts import Row, rows_from_file, rows_from_flags
from atom.runner.errors import PromptError
from atom.runner.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

PARAMS = SamplingParams(max_tokens=5)


def row_of(line: Any, tmp_path: Path, *, raw: bool = False) -> Row:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line if isinstance(line, bytes) else json.dumps(line).encode())
    [row] = rows_from_file(str(path), PARAMS, raw=raw)
    return row


def test_a_prompt_is_a_users_turn_where_there_is_a_template() -> None:
    [row] = rows_from_flags(["Who?"], PARAMS, raw=False)
    assert row.for_engine(templated=True) == [{"role": "user", "content": "Who?"}]
    assert row.for_engine(templated=False) == "Who?"
    assert row.params == PARAMS


def test_a_raw_prompt_stays_as_it_is() -> None:
    [row] = rows_from_flags(["Who?"], PARAMS, raw=True)
    assert row.for_engine(templated=True) == "Who?"


def test_a_file_may_hold_text_messages_and_token_ids(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Hi"}]
    assert row_of({"prompt": "a"}, tmp_path, raw=True).prompt == "a"
    assert row_of({"messages": chat}, tmp_path).for_engine(templated=True) == chat
    assert row_of({"prompt_token_ids": [1, 2]}, tmp_path).prompt == [1, 2]


def test_a_line_may_have_sampling_settings_of_its_own(tmp_path: Path) -> None:
    row = row_of({"prompt": "a", "temperature": 0.5, "seed": 7, "stop": ["x"], "top_k": None}, tmp_path)
    assert row.params == SamplingParams(max_tokens=5, temperature=0.5, seed=7, stop=("x",))


def test_lines_keep_their_numbers_and_blank_ones_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\n  \n{"prompt": "b"}')
    rows = rows_from_file(str(path), PARAMS, raw=False)
    assert [(row.index, row.label, row.prompt) for row in rows] == [(0, "line 1", "a"), (1, "line 4", "b")]


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"prompt": "piped"}\n')))
    [row] = rows_from_file("-", PARAMS, raw=False)
    assert row.prompt == "piped"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"nonsense", "line 1 is not JSON"),
        (b"[" * 100_000, "line 1 is not JSON"),
        (b'{"prompt": "\xff"}', "line 1 is not UTF-8 text: byte 13 is 0xff"),
        (b'{"prompt": "\\ud800"}', r"line 1: the prompt is not UTF-8 text: it holds U\+D800"),
        (b'{"messages": [{"role": "user", "content": "\\udc00"}]}', r"it holds U\+DC00"),
        ([], "line 1 is not a JSON object"),
        (b'{"prompt": "a", "prompt": "b"}', "line 1: field 'prompt' is there twice"),
        (b'{"messages": [{"role": "user", "content": "a", "role": "system"}]}', "'role' is there twice"),
        ({}, "line 1: needs exactly one of prompt, messages, prompt_token_ids; found none"),
        ({"prompt": "a", "messages": []}, "found prompt and messages"),
        ({"prompt": ""}, "line 1: prompt is empty"),
        ({"prompt": 3}, "prompt is not text"),
        ({"messages": []}, "messages is empty"),
        ({"messages": "hi"}, "messages is not a list"),
        ({"messages": [3]}, "no object with role and content"),
        ({"prompt_token_ids": []}, "prompt_token_ids is empty"),
        ({"prompt_token_ids": [1.0]}, "no whole number"),
        ({"prompt_token_ids": [True]}, "no whole number"),
        ({"prompt": "a", "temprature": 1}, "unknown field 'temprature'; there are prompt"),
        ({"prompt": "a", "max_tokens": 0}, "line 1: max_tokens=0: must be at least 1"),
        ({"prompt": "a", "top_p": "much"}, "top_p='much'"),
        ({"prompt": "a", "stop": 5}, "line 1: "),
    ],
)
def test_a_bad_line_becomes_a_row_that_says_what_is_wrong(line: Any, error: str, tmp_path: Path) -> None:
    import re

    row = row_of(line, tmp_path)
    assert row.error is not None
    assert re.search(error, row.error), row.error
    assert "\n" not in row.error


def test_an_error_row_keeps_the_prompt_it_was_about(tmp_path: Path) -> None:
    assert row_of({"prompt": "a", "max_tokens": 0}, tmp_path).prompt == "a"


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_a_request_is_an_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    with pytest.raises(PromptError, match="holds no request"):
        rows_from_file(str(path), PARAMS, raw=False)


@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        ("two\nlines", "two lines"),
        ("x" * 100, "x" * 71 + "…"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "b"),
        ([1, 2, 3], "3 token ids"),
    ],
)
def test_a_title_is_the_beginning_of_what_was_asked(prompt: Any, title: str) -> None:
    assert Row(0, "prompt 0", prompt).title == title
