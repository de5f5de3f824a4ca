"""`atom-runner inspect` and `atom-runner verify` on a tiny model, on the tape."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from atom.runner.cli import app
from atom.runner.verify import BucketCheck

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def flags(tiny: Path) -> list[str]:
    return ["--model", str(tiny), "--num-kv-blocks", "16", "--device", "cpu"]


def test_inspect_shows_buckets_segments_regions_and_bytes(
    flags: list[str], capsys: pytest.CaptureFixture[str], follows_documentation: Any
) -> None:
    assert app.main(["inspect", "--json", *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    follows_documentation("inspect", report)
    for recording in report["recordings"]:
        follows_documentation("inspect", recording, of="recordings")
    assert (report["level"], report["mode"]) == (0, "TR_HYBRID")
    assert report["captured"]["decode"] == [1, 2, 4, 8]
    token_buckets = [r for r in report["recordings"] if r["graph"].startswith("token graph of ")]
    assert [(r["segments"], len(r["regions"])) for r in token_buckets] == [(3, 2)] * 4
    assert report["pool_bytes"] > 0


def test_inspect_as_text_names_the_regions(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["inspect", "--cudagraph-capture-sizes", "2", *flags]) == 0
    text = capsys.readouterr().out
    assert "level 0, graph mode TR_HYBRID" in text
    assert "breaks at: unified_attention_with_output" in text
    assert "token bucket 2" in text
    assert "pool: " in text


def test_inspect_draws_graphs(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["inspect", "--dot", "--cudagraph-mode", "full", "--max-num-seqs", "1", *flags]) == 0
    text = capsys.readouterr().out
    assert text.startswith("digraph recordings {")
    assert text.rstrip().endswith("}")


def test_inspect_without_a_graph_mode_says_that_nothing_was_recorded(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(["inspect", "--cudagraph-mode", "none", *flags]) == 0
    assert capsys.readouterr().out.endswith("graph mode NONE\nnothing was recorded\n")


def test_verify_finds_every_bucket_equal(
    flags: list[str], capsys: pytest.CaptureFixture[str], follows_documentation: Any
) -> None:
    assert app.main(["verify", "--json", "--max-num-seqs", "2", *flags]) == 0
    printed = capsys.readouterr()
    rows = [json.loads(line) for line in printed.out.splitlines()]
    for row in rows:
        follows_documentation("verify", row)
    assert {(row["kind"], row["bucket"]) for row in rows} >= {("decode", 1), ("decode", 2)}
    assert all(row["passed"] and row["worst"] == 0 for row in rows)
    assert f"{len(rows)} checks, 0 with a difference above 0" in printed.err


@pytest.mark.parametrize(("tolerance", "code"), [("0.1", 2), ("0.5", 0)])
def test_verify_fails_where_a_difference_is_above_the_tolerance(
    tolerance: str,
    code: int,
    flags: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def differing(*arguments: object) -> list[BucketCheck]:
        return [BucketCheck("decode", 1, 1, 0.25)]

    monkeypatch.setattr("atom.runner.verify.verify_buckets", differing)
    arguments = ["verify", "--tolerance", tolerance, "--cudagraph-capture-sizes", "1", "--max-num-seqs", "1"]
    assert app.main([*arguments, *flags]) == code
    assert "decode bucket 1, 1 live rows: differs by 0.25" in capsys.readouterr().out


def test_verify_without_a_recording_is_an_error(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["verify", "--level", "0", *flags]) == 2
    assert "nothing was recorded in graph mode NONE" in capsys.readouterr().err
