"""Listing, checking and clearing a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from atom.compile import CacheReport, check_cache, clear_cache, list_cache
from atom.compile.cache_index import INDEX_NAME

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(compilers: Any, config_for: Any, stack_of: Any, tmp_path: Path) -> Path:
    stack_of(config_for(), layers=4, prefix="part/inner")(torch.arange(3))
    return tmp_path / "cache"


def test_a_list_tells_runs_and_shared_artifacts(root: Path) -> None:
    report = list_cache(root)
    (run,) = report.runs
    assert (run.rank, run.prefix, run.pieces, len(run.artifacts)) == (0, "part/inner", 5, 3)
    assert run.path.is_relative_to(root / run.run)
    assert sorted(artifact.used_by for artifact in report.artifacts) == [1, 1, 3]
    assert report.nbytes == sum(artifact.nbytes for artifact in report.artifacts) > 3 * 4096


def test_a_sound_cache_has_no_problems(root: Path) -> None:
    assert check_cache(root) == []


def test_damage_is_found_and_repaired(root: Path) -> None:
    (run,) = list_cache(root).runs
    (run.path / INDEX_NAME).write_text("import os")
    first, second = list((root / "artifacts").glob("??/*"))[:2]
    (first / "parts" / "1").write_bytes(b"cut")
    (second / "manifest.json").unlink()
    problems = check_cache(root)
    assert {problem.path for problem in problems} == {run.path / INDEX_NAME, first, second}
    assert len(check_cache(root, repair=True)) == 3
    assert check_cache(root) == []
    assert len(list_cache(root).artifacts) == 1


def test_clearing_removes_the_cache_and_nothing_else(root: Path) -> None:
    (root / "notes.txt").write_text("mine")
    (root / "folder").mkdir()
    assert clear_cache(root) > 3 * 4096
    assert sorted(path.name for path in root.iterdir()) == ["folder", "notes.txt"]
    assert clear_cache(root) == 0
    assert list_cache(root) == CacheReport(root)


def test_a_root_that_is_not_there_is_an_empty_cache(tmp_path: Path) -> None:
    assert list_cache(tmp_path / "absent") == CacheReport(tmp_path / "absent")
    assert check_cache(tmp_path / "absent", repair=True) == []
    assert clear_cache(tmp_path / "absent") == 0
