"""Where output goes: text and data to standard output, everything said about them to standard error."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atom.runner.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from atom.runner.protocols import Progress

PROGRAM = "atom-runner"
_FILE_WIDTH = 120
"""Columns of a table in a log."""


def write(text: str) -> None:
    """Put text on standard output at once, as a reader of a stream expects."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_json(row: Any) -> None:
    """Put one JSON value on standard output, on a line of its own."""
    write(json.dumps(row, ensure_ascii=False) + "\n")


def say(text: str) -> None:
    """Tell the person something that is not data."""
    print(text, file=sys.stderr, flush=True)


def say_error(message: str) -> None:
    """One line, whatever the message holds."""
    say(f"{PROGRAM}: error: {' '.join(message.split())}")


def stderr_console() -> Console:
    """A rich console on standard error; wide enough for a table's lines where it is no terminal."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    return console if console.is_terminal else Console(stderr=True, highlight=False, width=_FILE_WIDTH)


@contextlib.contextmanager
def progress_bars() -> Iterator[Progress]:
    """A progress callback that draws one bar for each task, on a terminal only."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = stderr_console()
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    tasks: dict[str, Any] = {}

    def advance(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total)
        bars.update(tasks[what], completed=done, total=total)

    with bars:
        yield advance


def prepare_streams(*, debug: bool) -> None:
    """UTF-8 both ways whatever the locale, and log lines that look like the rest of what we say.

    A process may be started with its streams closed: then there is nothing to read, and nobody to tell.

    Raises:
        RunnerError: standard output is closed, so that an answer would be lost.
    """
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 (for the whole process)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        raise RunnerError("standard output is closed: there is nowhere to write to")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LogLines())
    logging.basicConfig(level=logging.INFO if debug else logging.WARNING, handlers=[handler])


class _LogLines(logging.Formatter):
    """Log lines that look like the rest of what we say."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{PROGRAM}: {record.levelname.lower()}: {record.getMessage()}"


def discard_output() -> None:
    """Let what is still buffered for a reader that has gone vanish, instead of failing at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
