"""`atom-runner chat` as a person at a terminal meets it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
COMMAND = str(Path(sys.executable).parent / "atom-runner")
QUICK = ["--num-kv-blocks", "64", "--max-num-seqs", "1", "--max-model-len", "1024", "--device", "cpu"]


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches it
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which tests run in the background ignore


class Terminal:
    """A program with a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.seen = ""
        self._fd, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [COMMAND, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "dumb", "COLUMNS": "100"},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)

    def until(self, pattern: str, *, seconds: float = 240) -> str:
        """What appears up to and including the first match of `pattern`."""
        end = time.monotonic() + seconds
        while (match := re.search(pattern, self.seen)) is None:
            assert time.monotonic() < end, f"no {pattern!r} in {self.seen!r}"
            if select.select([self._fd], [], [], 1)[0]:
                self.seen += os.read(self._fd, 4096).decode(errors="replace")
        found, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return found

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def press_until_it_ends(self, key: str) -> None:
        """Press as a user would, again if nothing came of it: Python's input() misses a signal that arrives
        between the drawing of its prompt and the wait for a key."""
        for _ in range(12):
            self.type(key)
            try:
                self._process.wait(timeout=5)
                return
            except subprocess.TimeoutExpired:
                continue

    def exit_code(self) -> int:
        """The code of a program that is about to end; what it still writes is read, as a terminal would."""
        while select.select([self._fd], [], [], 60)[0]:
            try:
                if not os.read(self._fd, 4096):
                    break
            except OSError:  # Linux's way to say that the other end is closed
                break
        return self._process.wait(timeout=60)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._fd)


@pytest.fixture
def chat() -> Iterator[Terminal]:
    terminal = Terminal("chat", "--ignore-eos", "--max-tokens", "900", *QUICK)
    yield terminal
    terminal.close()


def test_ctrl_c_stops_an_answer_and_ctrl_d_leaves(chat: Terminal) -> None:
    greeting = chat.until("> ")
    assert "SmolLM2-135M-Instruct.Q4_1.gguf" in greeting
    assert "/help lists the commands" in greeting
    chat.type("Count.\n")
    chat.until(r"Count\.\r\n.*\w \w")
    chat.type("\x03")
    stopped = chat.until("> ")
    assert "Traceback" not in stopped
    chat.type("/help\n")
    assert "/reset   forget the conversation" in chat.until("> ")
    chat.type("/unknown\n")
    assert "no command /unknown" in chat.until("> ")
    chat.type("\x04")
    assert chat.exit_code() == 0


def test_ctrl_c_at_the_prompt_leaves_with_130(chat: Terminal) -> None:
    chat.until("> ")
    chat.press_until_it_ends("\x03")
    assert chat.exit_code() == 130
