"""Runs of the real command, and the tables in which the documentation promises what `--json` writes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

import pytest

PAGE = Path(__file__).parents[4] / "docs" / "cli.md"
CHECKS: dict[str, Any] = {
    "integer": lambda value: type(value) is int,
    "text": lambda value: isinstance(value, str),
    "null": lambda value: value is None,
    "list of integers": lambda value: isinstance(value, list) and all(type(v) is int for v in value),
    "list of texts": lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value),
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: type(value) is bool,
    "object": lambda value: isinstance(value, dict),
    "list of objects": lambda value: isinstance(value, list) and all(isinstance(v, dict) for v in value),
}


class Cli(Protocol):
    def __call__(
        self, *arguments: str, stdin: str | bytes = b"", timeout: float = 240
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="session")
def cli() -> Cli:
    """Runs `atom-runner` in a process of its own."""

    def run(
        *arguments: str, stdin: str | bytes = b"", timeout: float = 240
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command(*arguments),
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    return run


@pytest.fixture(scope="session")
def start_cli() -> Any:
    """Starts `atom-runner` with pipes and leaves it running."""

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    return start


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / "atom-runner"), *arguments]


@pytest.fixture(scope="session")
def follows_documentation() -> Any:
    """Checks that an object has exactly the fields, of the types, that the documentation of a verb lists."""

    def check(verb: str, row: dict[str, Any]) -> None:
        promised = documented_fields(verb)
        assert promised, f"docs/cli.md has no table for {verb} --json"
        for name, types in promised.items():
            required = "optional" not in types
            assert name in row or not required, f"{verb} --json lacks {name}"
            if name in row:
                allowed = [kind.strip() for kind in types.replace(", optional", "").split(" or ")]
                assert any(CHECKS[kind](row[name]) for kind in allowed), f"{name}={row[name]!r} is no {types}"
        assert set(row) <= set(promised), f"{verb} --json writes undocumented {set(row) - set(promised)}"

    return check


def documented_fields(verb: str) -> dict[str, str]:
    """Field and type of each row of the table under the heading of `verb`."""
    section = re.search(rf"^### What `{verb} --json` writes\n(.*?)(?=^#|\Z)", PAGE.read_text(), re.M | re.S)
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", section.group(1), re.M) if section else []
    return dict(rows)
