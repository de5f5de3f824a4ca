"""The index: a literal that is read, never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from atom.compile.cache_index import INDEX_NAME, read_index, update_index

if TYPE_CHECKING:
    from pathlib import Path

A, B = "a" * 64, "b" * 64


def test_entries_come_back_and_are_added_to(tmp_path: Path) -> None:
    path = tmp_path / INDEX_NAME
    update_index(path, {(None, 1, "inductor"): A})
    update_index(path, {(None, 0, "inductor"): A, (8, 0, "inductor"): B})
    assert read_index(path) == {
        (None, 0, "inductor"): A,
        (8, 0, "inductor"): B,
        (None, 1, "inductor"): A,
    }


def test_it_reads_well(tmp_path: Path) -> None:
    path = tmp_path / INDEX_NAME
    update_index(path, {(None, n, "inductor"): A for n in range(3)})
    assert path.read_text().splitlines()[1] == f" (None, 1, 'inductor'): '{A}',"


def test_no_index_is_an_empty_one_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_index(tmp_path / INDEX_NAME) == {}
    assert caplog.text == ""


FOREIGN = [
    "",
    "{",
    "[1, 2]",
    "{1: 2}",
    "{(None, 0, 'x'): 'short'}",
    f"{{(None, 0, 'x'): '{A}', (None, '0', 'x'): '{A}'}}",
    "__import__('os').system('touch executed')",
    f"{{(None, 0, 'x'): '{A}'}} if open('executed', 'w') else 0",
    "(" * 5000,
    "{(None, 0, 'x'): " + "-" * 20000 + "1}",
    "\0",
]


@pytest.mark.parametrize("text", FOREIGN, ids=range(len(FOREIGN)))
def test_a_foreign_text_is_logged_ignored_and_not_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / INDEX_NAME
    path.write_text(text)
    assert read_index(path) == {}
    assert "is not used" in caplog.text
    assert not (tmp_path / "executed").exists()
    update_index(path, {(None, 0, "x"): B})
    assert read_index(path) == {(None, 0, "x"): B}


def test_bytes_that_are_no_text_and_huge_files_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / INDEX_NAME
    path.write_bytes(b"\xff\xfe\x00")
    assert read_index(path) == {}
    with path.open("wb") as file:
        file.truncate((16 << 20) + 1)
    assert read_index(path) == {}
