from __future__ import annotations

from pathlib import Path

import pytest

from atom.models.checkpoint import json_document
from atom.models.checkpoint.json_document import parse_object, read_object
from atom.models.errors import CorruptCheckpointError


def test_an_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": {"b": [1, 2.5, null, "ü"]}}', encoding="utf-8")
    assert read_object(path) == {"a": {"b": [1, 2.5, None, "ü"]}}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"a": 1', "not valid JSON: .* at line 1, column 8"),
        (b"", "not valid JSON"),
        (b"[1]", "holds a JSON list, expected an object"),
        (b'{"a": 1, "a": 2}', "'a' is given twice"),
        (b'{"x": {"a": 1, "a": 2}}', "'a' is given twice"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "holds a value that cannot be read"),
        (b'{"a": "\xff"}', r"not UTF-8 text \(byte 7\)"),
    ],
)
def test_anything_else_is_one_line_that_names_the_file(raw: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(raw)
    with pytest.raises(CorruptCheckpointError, match=rf"config\.json: .*{message}") as caught:
        read_object(path)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_utf8_are_refused_when_parsed() -> None:
    with pytest.raises(CorruptCheckpointError, match="header is not UTF-8 text"):
        parse_object(Path("x"), b'{"a": "\xff"}', what="header")


def test_a_file_larger_than_any_such_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": 1}')
    monkeypatch.setattr(json_document, "LARGEST_DOCUMENT_BYTES", 7)
    with pytest.raises(CorruptCheckpointError, match="8 bytes, more than 7"):
        read_object(path)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptCheckpointError, match=r"absent\.json: cannot be read: No such file"):
        read_object(tmp_path / "absent.json")
