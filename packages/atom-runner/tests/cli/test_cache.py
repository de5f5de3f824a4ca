"""`atom-runner cache` on a cache that a real run at level 3 has filled."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from atom.runner.cli import app

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("c++") is None, reason="level 3 on the CPU needs a C++ compiler"),
]


@pytest.fixture(scope="module")
def filled(cli: Any, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory after one run."""
    root: Path = tmp_path_factory.mktemp("cache")
    result = cli(
        *("generate", "--json", "--prompts-file", "-", "--model", str(tiny), "--level", "3"),
        *("--cudagraph-mode", "none", "--num-kv-blocks", "16", "--device", "cpu", "--cache-dir", str(root)),
        stdin=b'{"prompt_token_ids": [1, 5, 9], "max_tokens": 2, "ignore_eos": true}',
    )
    assert result.returncode == 0, result.stderr
    return root


@pytest.fixture
def root(filled: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return shutil.copytree(filled, tmp_path / "cache")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = app.main(["cache", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_list_shows_runs_and_the_artifacts_they_share(
    root: Path, capsys: pytest.CaptureFixture[str], follows_documentation: Any
) -> None:
    code, report = run(capsys, "list", "--cache-dir", str(root))
    assert code == 0
    follows_documentation("cache list", report)
    follows_documentation("cache list", report["runs"][0], of="runs")
    follows_documentation("cache list", report["artifacts"][0], of="artifacts")
    [listed] = report["runs"]
    assert set(listed["artifacts"]) == {artifact["digest"] for artifact in report["artifacts"]}
    assert report["nbytes"] == sum(artifact["nbytes"] for artifact in report["artifacts"]) > 0


def test_check_finds_a_flipped_byte_and_repairs_it(
    root: Path, capsys: pytest.CaptureFixture[str], follows_documentation: Any
) -> None:
    assert run(capsys, "check", "--cache-dir", str(root)) == (
        0,
        {"root": str(root), "problems": [], "repaired": False},
    )
    largest = max(
        (path for path in root.glob("artifacts/**/*") if path.is_file()), key=lambda p: p.stat().st_size
    )
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    code, report = run(capsys, "check", "--cache-dir", str(root))
    assert (code, len(report["problems"])) == (2, 1)
    follows_documentation("cache check", report)
    follows_documentation("cache check", report["problems"][0], of="problems")
    assert run(capsys, "check", "--repair", "--cache-dir", str(root))[0] == 0
    assert run(capsys, "check", "--cache-dir", str(root))[0] == 0


def test_clear_removes_the_cache_and_nothing_else(
    root: Path, capsys: pytest.CaptureFixture[str], follows_documentation: Any
) -> None:
    (root / "mine.txt").write_text("kept")
    code, report = run(capsys, "clear", "--cache-dir", str(root))
    assert code == 0
    follows_documentation("cache clear", report)
    assert report["freed_bytes"] > 0
    assert (root / "mine.txt").read_text() == "kept"
    assert run(capsys, "list", "--cache-dir", str(root))[1]["artifacts"] == []


def test_the_text_forms_say_the_same(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["cache", "list", "--cache-dir", str(root)]) == 0
    assert "artifacts, " in capsys.readouterr().out
    assert app.main(["cache", "check", "--cache-dir", str(root)]) == 0
    assert "0 problems" in capsys.readouterr().err
    assert app.main(["cache", "clear", "--cache-dir", str(root)]) == 0
    assert "MiB freed" in capsys.readouterr().err


def test_a_cache_that_is_not_there_is_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run(capsys, "list", "--cache-dir", str(tmp_path / "none"))
    assert (code, report["runs"], report["artifacts"]) == (0, [], [])
