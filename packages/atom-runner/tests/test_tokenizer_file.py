"""A tokenizer given in place of the checkpoint's own."""

from __future__ import annotations

import pytest

from atom.runner import TokenizerError
from atom.runner.tokenizer_file import GivenTokenizer, tokenizer_from_file

OWN = GivenTokenizer("own", "template", "<s>", "</s>", {"pad_token": "<pad>"}, add_bos=True)


def test_the_vocabulary_is_the_files_and_the_rest_the_checkpoints(tmp_path):
    (tmp_path / "tokenizer.json").write_text("given", encoding="utf-8")
    expected = GivenTokenizer("given", "template", "<s>", "</s>", {"pad_token": "<pad>"}, add_bos=True)
    assert tokenizer_from_file(str(tmp_path / "tokenizer.json"), OWN) == expected
    assert tokenizer_from_file(str(tmp_path), OWN) == expected
    assert tokenizer_from_file(str(tmp_path), None) == GivenTokenizer("given")


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    for name in ("missing.json", "binary.json"):
        with pytest.raises(TokenizerError, match=f"{name}.* cannot be read: .*; give a ") as error:
            tokenizer_from_file(str(tmp_path / name), None)
        assert "\n" not in str(error.value)
