"""Scores of the compressed entries for each query of the Lightning Indexer, and the best of them.

A row's band is the entries that its token may see: the first `(position + 1) // ratio` of its sequence.
Scores outside of it may hold anything and are not read.

- In FP4 the launch is planned from the step's sequences, so `_fp4_band_logits` is an eager region: the only
  place where a token graph of this model breaks. Under a request graph its launch has the bucket's width.
- In the other formats every launch follows from rows and width and is recorded.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from atom.compile import direct_register_custom_op
from atom.compile.split import mark_spliting_op
from atom.graphs import eager_region
from atom.graphs.forward_context import get_forward_context
from atom.models.deepseek_v4.step import SEQUENCE, Step, step_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_NUMBERS = 1 << 24
"""Scores of heads held at once; more rows than that allows are done in turns."""


@eager_region
def _fp4_band_logits(
    query: torch.Tensor,
    weights: torch.Tensor,
    rows: torch.Tensor,
    fence: torch.Tensor,
    layer_id: int,
    width: int,
) -> torch.Tensor:
    step = step_of(layer_id)
    if step is None:
        return query.new_zeros((query.shape[0], width), dtype=torch.float32)
    return _planned_logits(step, query, weights, width)


@functools.wraps(_fp4_band_logits)
def v4_fp4_band_logits(
    query: torch.Tensor,
    weights: torch.Tensor,
    rows: torch.Tensor,
    fence: torch.Tensor,
    layer_id: int,
    width: int,
) -> torch.Tensor:
    """As `v4_index_logits`, by the eager region unless a request bucket fixes the launch."""
    step = step_of(layer_id)
    if step is not None and step.metadata.request_bucket is not None:
        return _fixed_logits(step, query, weights, rows, width)
    return _fp4_band_logits(query, weights, rows, fence, layer_id, width)


def v4_index_logits(
    query: torch.Tensor,
    weights: torch.Tensor,
    rows: torch.Tensor,
    fence: torch.Tensor,
    layer_id: int,
    width: int,
) -> torch.Tensor:
    """Float32 scores `[rows, width]`.

    The score of an entry is the sum over heads of `weight * relu(query . key)`.

    Args:
        query: `[rows, heads, index_dim]`, rotated.
        weights: float32 `[rows, heads]`, all constant factors in them; may be negative.
        rows: from `v4_step_rows`.
        fence: orders this after the index keys of the step.
        layer_id: the layer.
        width: entries of the longest sequence that can be.
    """
    step = step_of(layer_id)
    if step is None:
        return query.new_zeros((query.shape[0], width), dtype=torch.float32)
    if step.is_prefill:
        return _planned_logits(step, query, weights, width)
    return _fixed_logits(step, query, weights, rows, width)


def v4_index_picks(logits: torch.Tensor, positions: torch.Tensor, ratio: int, top_k: int) -> torch.Tensor:
    """Numbers of the best entries in each row's band, int64 `[rows, top_k]`, best first, -1 where there are
    fewer. Of equal scores the earlier entry is better."""
    context = get_forward_context()
    if context.context is not None and context.context.is_prefill:
        # What no sequence of the step has need not be sorted.
        logits = logits[:, : context.attn_metadata.max_seqlen_k // ratio]  # type: ignore[union-attr]
    visible = ((positions + 1) // ratio).unsqueeze(1)
    column = torch.arange(logits.shape[1], device=logits.device)
    banded = torch.where(column < visible, logits, float("-inf"))
    best = banded.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    rank = torch.arange(best.shape[1], device=logits.device)
    picks = torch.where(rank < visible, best, -1)
    return torch.nn.functional.pad(picks, (0, top_k - picks.shape[1]), value=-1)


def _planned_logits(step: Step, query: torch.Tensor, weights: torch.Tensor, width: int) -> torch.Tensor:
    """Sequence after sequence, no entry scored that nobody sees; reads the host's lengths."""
    pool, index, ratio = step.caches["index_keys"], step.layer.index_format, step.layer.ratio
    metadata, rows_per_block = step.metadata, pool.shape[1]
    logits = query.new_empty((query.shape[0], width), dtype=torch.float32)
    begin = 0
    for sequence, (query_len, seq_len) in enumerate(
        zip(metadata.query_lens_host, metadata.seq_lens_host, strict=True)
    ):
        entries, end = seq_len // ratio, begin + query_len
        if entries and query_len:
            blocks = metadata.block_tables[sequence, : -(-entries // rows_per_block)]
            keys = index.decode(pool[blocks].flatten(0, 1)[:entries])
            for part in _chunks(begin, end, entries * query.shape[1]):
                logits[part, :entries] = _scores(index.query(query[part]), keys, weights[part])
        begin = end
    return logits


def _fixed_logits(
    step: Step, query: torch.Tensor, weights: torch.Tensor, rows: torch.Tensor, width: int
) -> torch.Tensor:
    """All rows at full width; reads nothing on the host."""
    pool, index = step.caches["index_keys"], step.layer.index_format
    blocks = step.metadata.block_tables[rows[SEQUENCE]]
    keys = index.decode(pool[blocks].flatten(1, 2)[:, :width])
    return _scores(index.query(query), keys, weights)


def _scores(query: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """`[n, entries]` of queries `[n, heads, dim]` and keys `[entries, dim]` or `[n, entries, dim]`."""
    products = torch.matmul(query, keys.transpose(-1, -2)).relu()
    return torch.matmul(weights.unsqueeze(1), products).squeeze(1)


def _chunks(begin: int, end: int, numbers_per_row: int) -> Iterator[slice]:
    size = max(1, _CHUNK_NUMBERS // numbers_per_row)
    for start in range(begin, end, size):
        yield slice(start, min(start + size, end))


def _logits_fake(
    query: torch.Tensor,
    weights: torch.Tensor,
    rows: torch.Tensor,
    fence: torch.Tensor,
    layer_id: int,
    width: int,
) -> torch.Tensor:
    return query.new_empty((query.shape[0], width), dtype=torch.float32)


def _picks_fake(logits: torch.Tensor, positions: torch.Tensor, ratio: int, top_k: int) -> torch.Tensor:
    return positions.new_empty((positions.shape[0], top_k))


for _name, _func, _fake in (
    ("v4_fp4_band_logits", v4_fp4_band_logits, _logits_fake),
    ("v4_index_logits", v4_index_logits, _logits_fake),
    ("v4_index_picks", v4_index_picks, _picks_fake),
):
    direct_register_custom_op(_name, _func, mutates_args=[], fake_impl=_fake)
    mark_spliting_op(f"aiter.{_name}")
