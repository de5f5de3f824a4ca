"""The README shows `--help` as it is. Run this file as a script to bring it up to date."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
MARKS = re.compile(r"(<!-- help:begin -->\n).*?(<!-- help:end -->)", re.DOTALL)
SHOWN = (("--help",), ("generate", "--help"))


def current() -> str:
    """The README with the help texts that the program prints now."""
    blocks = []
    for arguments in SHOWN:
        printed = subprocess.run(
            [sys.executable, "-m", "atom.runner.cli.app", *arguments],
            env={**os.environ, "COLUMNS": "100"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        blocks.append(f"```text\n$ atom-runner {' '.join(arguments)}\n{printed.rstrip()}\n```\n")
    program, generate = blocks
    folded = f"<details><summary>atom-runner generate --help</summary>\n\n{generate}\n</details>\n"
    return MARKS.sub(lambda match: f"{match[1]}{program}\n{folded}{match[2]}", README.read_text())


def test_the_readme_shows_the_help_of_today() -> None:
    assert README.read_text() == current()


if __name__ == "__main__":
    README.write_text(current())
