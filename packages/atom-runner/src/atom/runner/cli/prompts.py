"""Requests as a command line gives them: flags, or a file with one JSON object a line."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atom.runner.errors import PromptError, RequestError
from atom.runner.sampling_params import SamplingParams
from atom.runner.tokenizer import require_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from atom.runner.prompt import Prompt

_TITLE_LENGTH = 72
PROMPT_FIELDS = ("prompt", "messages", "prompt_token_ids")
SAMPLING_FIELDS = tuple(wish.name for wish in dataclasses.fields(SamplingParams))


@dataclass(frozen=True)
class Row:
    """One request, or what is wrong with it."""

    index: int
    """Place among the requests, from 0."""
    label: str
    """What a person calls it: `prompt 0`, `line 3`."""
    prompt: Prompt = ()
    """Text, chat messages or token ids, as they were given; empty where none could be made out."""
    is_question: bool = False
    """Whether a text is a user's turn of a chat, rather than something to continue."""
    params: SamplingParams = field(default_factory=SamplingParams)
    error: str | None = None

    def for_engine(self, *, templated: bool) -> Prompt:
        """The prompt in the form the engine takes; `templated`: there is a chat template."""
        return [{"role": "user", "content": self.prompt}] if self.is_question and templated else self.prompt

    @property
    def title(self) -> str:
        """The beginning of what was asked, on one line."""
        if isinstance(self.prompt, str):
            text = self.prompt
        elif self.prompt and isinstance(self.prompt[-1], Mapping):
            text = str(self.prompt[-1].get("content"))
        else:
            text = f"{len(self.prompt)} token ids"
        line = " ".join(text.split())
        return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1] + "…"


def rows_from_flags(prompts: Sequence[str], params: SamplingParams, *, raw: bool) -> list[Row]:
    """A row for each `--prompt`."""
    return [
        _row(index, f"prompt {index}", {"prompt": prompt}, params, raw=raw)
        for index, prompt in enumerate(prompts)
    ]


def rows_from_file(name: str, params: SamplingParams, *, raw: bool) -> list[Row]:
    """A row for each line of a JSONL file, `-` for standard input; blank lines count for nothing.

    Raises:
        PromptError: no file is named, or it has no line with a request.
        OSError: the file cannot be read.
    """
    if not name:
        raise PromptError("--prompts-file is empty: give the path of a file, or - for standard input")
    raw_bytes = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    lines = [
        (number, line) for number, line in enumerate(raw_bytes.split(b"\n"), start=1) if line.strip(b" \t\r")
    ]
    if not lines:
        raise PromptError(f"{'standard input' if name == '-' else name} holds no request")
    return [
        _row_from_line(index, f"line {number}", line, params, raw=raw)
        for index, (number, line) in enumerate(lines)
    ]


def _row_from_line(index: int, label: str, line: bytes, params: SamplingParams, *, raw: bool) -> Row:
    try:
        fields = json.loads(line.decode("utf-8-sig"), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        byte = f"byte {error.start + 1} is 0x{line[error.start]:02x}"
        return Row(index, label, error=f"{label} is not UTF-8 text: {byte}")
    except PromptError as error:
        return Row(index, label, error=f"{label}: {error}")
    except (ValueError, RecursionError) as error:
        return Row(index, label, error=f"{label} is not JSON: {error}")
    if not isinstance(fields, dict):
        return Row(index, label, error=f"{label} is not a JSON object")
    return _row(index, label, fields, params, raw=raw)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, in which a name that stands twice would silently mean its last value."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise PromptError(f"field {twice!r} is there twice")
    return fields


def _row(index: int, label: str, fields: dict[str, Any], params: SamplingParams, *, raw: bool) -> Row:
    try:
        prompt = _prompt(fields)
        given = {name: value for name, value in fields.items() if value is not None}
        wishes = {name: value for name, value in given.items() if name not in PROMPT_FIELDS}
        unknown = sorted(wishes.keys() - set(SAMPLING_FIELDS))
        if unknown:
            allowed = ", ".join((*PROMPT_FIELDS, *SAMPLING_FIELDS))
            raise PromptError(f"unknown field {unknown[0]!r}; there are {allowed}")
        is_question = isinstance(prompt, str) and not raw
        return Row(index, label, prompt, is_question, dataclasses.replace(params, **wishes))
    except (RequestError, TypeError, RecursionError) as error:
        text = fields.get("prompt")
        return Row(index, label, text if isinstance(text, str) else (), error=f"{label}: {error}")


def _prompt(fields: dict[str, Any]) -> Prompt:
    given = [name for name in PROMPT_FIELDS if fields.get(name) is not None]
    if len(given) != 1:
        found = f"found {' and '.join(given)}" if given else "found none"
        raise PromptError(f"needs exactly one of {', '.join(PROMPT_FIELDS)}; {found}")
    name, value = given[0], fields[given[0]]
    expected = str if name == "prompt" else list
    if not isinstance(value, expected):
        raise PromptError(f"{name} is not {'text' if expected is str else 'a list'}")
    if not value:
        raise PromptError(f"{name} is empty")
    if name == "messages" and not all(isinstance(message, dict) for message in value):
        raise PromptError("messages holds something that is no object with role and content")
    if name == "prompt_token_ids" and not all(type(token_id) is int for token_id in value):
        raise PromptError("prompt_token_ids holds something that is no whole number")
    for text in _texts(value):
        require_text(text)
    return value  # one of the three forms, checked above


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(list(value.values()))
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
