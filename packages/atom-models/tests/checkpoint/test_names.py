from __future__ import annotations

from pathlib import Path

import pytest

from atom.models.checkpoint.names import check_file_name, check_name, shown
from atom.models.errors import CorruptCheckpointError

PATH = Path("some.file")


@pytest.mark.parametrize(
    "value",
    [
        "two\nlines",
        "nul\0",
        "x" * 10_000,
        "\u2028 \x1b[2J",
        b"\xff" * 5000,
        [["a"] * 500],
        {"k": "v" * 500},
        None,
    ],
)
def test_anything_is_shown_in_one_short_line_of_ascii(value: object) -> None:
    text = shown(value)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) <= 83


def test_a_value_nested_without_end_is_still_shown() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "'a list nested too deep to show'".strip("'")


@pytest.mark.parametrize(
    "name",
    ["model.layers.0.self_attn.q_proj.weight", "lm_head.weight", "a..b", "größe", "encoder/layer_0/kernel:0"],
)
def test_names_that_exporters_write_pass(name: str) -> None:
    check_name(PATH, name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "empty name"),
        ("a\0b", r"'a\\x00b' holds a control character"),
        ("a\nb", "control character"),
        ("../../etc/passwd", "looks like a path"),
        ("a/../b", "looks like a path"),
        ("..\\b", "looks like a path"),
        ("/etc/passwd", "looks like a path"),
        ("x" * 1025, "has 1025 characters, more than 1024"),
    ],
)
def test_names_that_no_exporter_writes_are_refused(name: str, message: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=f"some.file: .*{message}") as caught:
        check_name(PATH, name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["sub/model.safetensors", "..", ".", "c:\\model", "/abs.safetensors"])
def test_a_neighbouring_file_is_a_plain_name(name: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=r"some\.file: "):
        check_file_name(PATH, name)
    check_file_name(PATH, "model-00001-of-00002.safetensors")
