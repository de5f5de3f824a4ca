"""Files that appear whole, and locks that are an economy only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from atom.compile import atomic_files
from atom.compile.atomic_files import file_digest, process_lock, remove_tree, unique_name, write_text

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_text_replaces_the_one_before_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "made" / "file"
    write_text(path, "one")
    write_text(path, "two")
    assert path.read_text() == "two"
    assert [made.name for made in path.parent.iterdir()] == ["file"]


def test_a_text_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_text(path, "one")

    def full(self: Path, *args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "two")
    monkeypatch.undo()
    assert path.read_text() == "one"
    assert [made.name for made in tmp_path.iterdir()] == ["file"]


def test_names_are_unique() -> None:
    assert len({unique_name() for _ in range(1000)}) == 1000


def test_digests_tell_contents_apart(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "b").write_bytes(b"y")
    assert file_digest(tmp_path / "a") != file_digest(tmp_path / "b")
    assert len(file_digest(tmp_path / "a")) == 64


def test_removing_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "tree" / "inner").mkdir(parents=True)
    remove_tree(tmp_path / "tree")
    remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_held_by_one_process_and_freed_when_it_dies(
    tmp_path: Path, in_children: Callable[..., list[int]]
) -> None:
    lock = tmp_path / "lock"
    with process_lock(lock, patience_s=0) as held:
        assert held

        def try_it() -> None:
            with process_lock(lock, patience_s=0.05) as also_held:
                assert not also_held

        assert in_children(try_it) == [0]

    def die_with_it() -> None:
        with process_lock(lock, patience_s=0):
            os._exit(9)

    assert in_children(die_with_it) == [9]
    with process_lock(lock, patience_s=0) as held:
        assert held


@pytest.mark.parametrize("broken", ["no fcntl", "no folder"])
def test_work_goes_on_without_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    (tmp_path / "file").write_text("")
    if broken == "no fcntl":
        monkeypatch.setattr(atomic_files, "fcntl", None)
    path = tmp_path / "lock" if broken == "no fcntl" else tmp_path / "file" / "lock"
    with process_lock(path, patience_s=0) as held:
        assert not held
