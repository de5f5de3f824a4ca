from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atom.runner.cli.answers import JsonPrinter, TextPrinter
from atom.runner.cli.prompts import Row

if TYPE_CHECKING:
    import pytest


@dataclass
class Output:
    """What a printer reads of an engine's output."""

    delta: str = ""
    text: str | None = ""
    finish_reason: str | None = None
    error: str | None = None
    prompt: str | None = "asked"
    prompt_token_ids: list[int] = field(default_factory=lambda: [1])
    token_ids: list[int] = field(default_factory=lambda: [2])
    new_token_ids: list[int] = field(default_factory=lambda: [2])

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


ROWS = [Row(index, f"prompt {index}", f"question {index}") for index in range(3)]


def show(printer: Any, row: Row, delta: str, *, last: bool = False, **fields: Any) -> None:
    printer.show(row, Output(delta=delta, text=delta, finish_reason="stop" if last else None, **fields))


def test_one_answer_streams_and_ends_with_a_newline(capsys: pytest.CaptureFixture[str]) -> None:
    printer = TextPrinter(ROWS[:1])
    show(printer, ROWS[0], "Pa")
    assert capsys.readouterr().out == "Pa"
    show(printer, ROWS[0], "ris", last=True)
    assert capsys.readouterr().out == "ris\n"


def test_several_answers_appear_in_the_order_of_their_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    printer = TextPrinter(ROWS)
    show(printer, ROWS[1], "b", last=True)
    assert capsys.readouterr().out == ""
    show(printer, ROWS[0], "a")
    assert capsys.readouterr().out == "[0] question 0\na"
    show(printer, ROWS[2], "c")
    show(printer, ROWS[0], "A", last=True)
    assert capsys.readouterr().out == "A\n\n[1] question 1\nb\n\n[2] question 2\nc"
    show(printer, ROWS[2], "", last=True)
    assert capsys.readouterr().out == "\n\n"


def test_a_refused_prompt_shows_nothing_and_is_told_on_the_other_stream(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printer = TextPrinter(ROWS[:2])
    printer.refuse(ROWS[0], "prompt 0: too long")
    show(printer, ROWS[1], "b", last=True)
    printed = capsys.readouterr()
    assert printed.out == "[1] question 1\nb\n\n"
    assert printed.err == "atom-runner: error: prompt 0: too long\n"


def test_without_a_tokenizer_the_token_ids_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    printer = TextPrinter(ROWS[:1])
    printer.show(ROWS[0], Output(text=None, new_token_ids=[5]))  # type: ignore[arg-type]
    printer.show(ROWS[0], Output(text=None, new_token_ids=[6], finish_reason="length"))  # type: ignore[arg-type]
    assert capsys.readouterr().out == "5 6 \n"


def test_json_rows_appear_whole_and_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    printer = JsonPrinter()
    show(printer, ROWS[0], "half")
    printer.refuse(ROWS[1], "prompt 1: empty")
    assert capsys.readouterr().out == ""
    show(printer, ROWS[0], "é\n", last=True)
    first, second = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first == {
        "index": 0,
        "prompt": "asked",
        "prompt_token_ids": [1],
        "token_ids": [2],
        "text": "é\n",
        "finish_reason": "stop",
    }
    assert second == {
        "index": 1,
        "prompt": "question 1",
        "prompt_token_ids": [],
        "token_ids": [],
        "text": None,
        "finish_reason": "error",
        "error": "prompt 1: empty",
    }


def test_an_answer_that_ended_in_an_error_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    output: Any = Output(text="so far", finish_reason="error", error="the cache is too small")
    JsonPrinter().show(ROWS[0], output)
    row = json.loads(capsys.readouterr().out)
    assert (row["finish_reason"], row["error"], row["text"]) == ("error", "the cache is too small", "so far")
