"""A package's changelog opens with its version, and says what that version brings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

PACKAGES = sorted((Path(__file__).parent.parent / "packages").iterdir())


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_the_first_entry_is_the_version_and_is_not_empty(package: Path) -> None:
    version = tomllib.loads((package / "pyproject.toml").read_text())["project"]["version"]
    text = (package / "CHANGELOG.md").read_text()
    entries = re.findall(r"^## (\S+).*\n((?:(?!^## ).*\n?)*)", text, flags=re.MULTILINE)
    assert entries, "no entry"
    newest, body = entries[0]
    assert newest == version
    assert re.search(r"^- \S", body, flags=re.MULTILINE), f"{version} has no line that says what it brings"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_entries_stand_newest_first(package: Path) -> None:
    text = (package / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (\d+)\.(\d+)\.(\d+)", text, flags=re.MULTILINE)
    numbers = [tuple(map(int, version)) for version in versions]
    assert numbers == sorted(set(numbers), reverse=True)
