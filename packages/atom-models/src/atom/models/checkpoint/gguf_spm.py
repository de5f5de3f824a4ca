"""Merges of a SentencePiece vocabulary, recovered from its scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom.models.checkpoint.names import shown
from atom.models.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_LONGEST_MERGED = 1024


def spm_merges(
    path: Path, tokens: Sequence[str], scores: Sequence[float], merged_ids: Sequence[int]
) -> list[tuple[str, str]]:
    """Every way to build one of the tokens `merged_ids` from two others, best first.

    SentencePiece joins the neighbouring pair whose result has the best score. As a list of merges that is:
    all pairs of pieces that make a token, in order of that token's score; of equal ones, the longest left
    piece first.

    Raises:
        CorruptCheckpointError: a token longer than any tokenizer learns.
    """
    known = {token: id_ for id_, token in enumerate(tokens)}
    ranked: list[tuple[float, int, int, int, int, str, str]] = []
    for order, id_ in enumerate(merged_ids):
        token = tokens[id_]
        if len(token) > _LONGEST_MERGED:
            raise CorruptCheckpointError(
                f"{path}: token {id_}, {shown(token)}, has {len(token)} characters, more than "
                f"{_LONGEST_MERGED}"
            )
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in known and right in known:
                ranked.append((-scores[id_], -cut, cut - len(token), order, known[left], left, right))
    ranked.sort(key=lambda entry: entry[:5])
    return [(left, right) for *_, left, right in ranked]
