"""Answers on standard output, in the order of their prompts however the engine finishes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from atom.runner.cli.console import say_error, write, write_json

if TYPE_CHECKING:
    from atom.runner.cli.prompts import Row
    from atom.runner.output import RequestOutput


class Printer(Protocol):
    """Shows answers as they grow."""

    def show(self, row: Row, output: RequestOutput) -> None:
        """One step of one request."""

    def refuse(self, row: Row, error: str) -> None:
        """A request that gets no answer, or none further."""


class JsonPrinter:
    """One JSON object a line for each request, as soon as it and all before it are done."""

    def __init__(self) -> None:
        self._ready: dict[int, dict[str, Any]] = {}
        self._next = 0

    def show(self, row: Row, output: RequestOutput) -> None:
        if output.finished:
            self._put(row, json_answer(row, output))

    def refuse(self, row: Row, error: str) -> None:
        self._put(row, json_error(row, error))

    def _put(self, row: Row, fields: dict[str, Any]) -> None:
        self._ready[row.index] = fields
        while self._next in self._ready:
            write_json(self._ready.pop(self._next))
            self._next += 1


class TextPrinter:
    """The text of each answer. The first unfinished one streams, those after it wait for their turn.

    Where there are several, a line with its number and the beginning of its prompt precedes each answer. A
    refused prompt shows nothing here: what was wrong with it is told on standard error.
    """

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows
        self._next = 0
        self._headed = False
        self._texts: dict[int, str] = {}
        self._done: set[int] = set()

    def show(self, row: Row, output: RequestOutput) -> None:
        delta = output.delta
        if output.text is None:  # no tokenizer: token ids are all there is to show
            delta = "".join(f"{token_id} " for token_id in output.new_token_ids)
        self._texts[row.index] = self._texts.get(row.index, "") + delta
        if output.finished:
            self._done.add(row.index)
        self._advance()

    def refuse(self, row: Row, error: str) -> None:
        say_error(error)
        self._done.add(row.index)
        self._advance()

    def _advance(self) -> None:
        while self._next in self._texts or self._next in self._done:
            if self._next in self._texts:
                self._write_head(self._rows[self._next])
                write(self._texts.pop(self._next))
            if self._next not in self._done:
                return
            if self._headed:  # a refused prompt has shown nothing, so there is nothing to close
                write("\n" if len(self._rows) == 1 else "\n\n")
            self._next += 1
            self._headed = False

    def _write_head(self, row: Row) -> None:
        if len(self._rows) > 1 and not self._headed:
            write(f"[{row.index}] {row.title}\n")
        self._headed = True


def json_answer(row: Row, output: RequestOutput) -> dict[str, Any]:
    """The object that `--json` writes for an answered request."""
    fields: dict[str, Any] = {
        "index": row.index,
        "prompt": output.prompt,
        "prompt_token_ids": output.prompt_token_ids,
        "token_ids": output.token_ids,
        "text": output.text,
        "finish_reason": output.finish_reason,
    }
    reason = output.error if output.finish_reason == "error" else None
    return fields if reason is None else {**fields, "error": reason}


def json_error(row: Row, error: str) -> dict[str, Any]:
    """The object that `--json` writes for a request that was not answered."""
    return {
        "index": row.index,
        "prompt": row.prompt if isinstance(row.prompt, str) else None,
        "prompt_token_ids": [],
        "token_ids": [],
        "text": None,
        "finish_reason": "error",
        "error": error,
    }
