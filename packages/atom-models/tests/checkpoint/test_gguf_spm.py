from __future__ import annotations

from pathlib import Path

import pytest

from atom.models.checkpoint.gguf_spm import spm_merges
from atom.models.errors import CorruptCheckpointError

PATH = Path("some.gguf")


def test_merges_come_best_score_first_and_then_longest_left_piece() -> None:
    tokens = ["a", "b", "ab", "bb", "abb", "x"]
    scores = [0.0, 0.0, -2.0, -1.0, -1.0, 0.0]
    merges = spm_merges(PATH, tokens, scores, range(len(tokens)))
    assert merges == [("ab", "b"), ("a", "bb"), ("b", "b"), ("a", "b")]


def test_only_the_tokens_named_are_built() -> None:
    tokens = ["a", "b", "ab", "ba"]
    assert spm_merges(PATH, tokens, [0.0] * 4, [3]) == [("b", "a")]


def test_a_token_no_tokenizer_learns_is_refused_before_it_takes_quadratic_time() -> None:
    with pytest.raises(
        CorruptCheckpointError, match=r"token 1, 'yyyy.*, has 2000 characters, more than 1024"
    ):
        spm_merges(PATH, ["y", "y" * 2000], [0.0, 0.0], [0, 1])
