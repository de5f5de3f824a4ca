"""`aiter.v4_sparse_attention`: one softmax over a token's window and its compressed entries, with a sink.

Keys are values. A row's own step gives it the keys of this step, the window ring those before; entries lie in
the paged pool. Every shape follows from the number of rows, so the op is recorded inline.
"""

from __future__ import annotations

import torch

from atom.compile import direct_register_custom_op
from atom.compile.split import mark_spliting_op
from atom.models.deepseek_v4.step import END, FIRST, SEQUENCE, SLOT, Step, pool_rows, step_of

_CHUNK_NUMBERS = 1 << 24
"""Numbers of gathered keys held at once; more rows than that allows are done in turns."""


def v4_sparse_attention(
    query: torch.Tensor,
    kv: torch.Tensor,
    positions: torch.Tensor,
    rows: torch.Tensor,
    picks: torch.Tensor | None,
    fence: torch.Tensor,
    output: torch.Tensor,
    layer_id: int,
) -> None:
    """Attend, put the result into `output`, then write the step's keys to the window ring.

    Args:
        query: `[rows, heads, dim]`, normed and rotated.
        kv: `[rows, dim]`, this step's keys.
        positions: int64 `[rows]`.
        rows: from `v4_step_rows`.
        picks: entries of a sparse layer int64 `[rows, k]`, -1 for none.
        fence: orders this after the step's entries.
        output: `[rows, heads, dim]`.
        layer_id: the layer.

    Raises:
        AttentionSetupError: the forward context knows no such layer, or no cache for it.
    """
    step = step_of(layer_id)
    if step is None:
        output.zero_()
        return
    window = step.caches["window"]
    keys_per_row = step.layer.window + _entry_count(step, picks)
    size = max(1, _CHUNK_NUMBERS // (keys_per_row * kv.shape[1]))
    for start in range(0, query.shape[0], size):
        part = slice(start, start + size)
        entries = _entries(step, positions[part], None if picks is None else picks[part])
        keys, seen = _window_keys(step, kv, window, positions[part], rows[:, part], start)
        if entries is not None:
            more, also_seen = _entry_keys(step, entries, rows[SEQUENCE, part], kv.dtype)
            keys, seen = torch.cat((keys, more), 1), torch.cat((seen, also_seen), 1)
        output[part] = _attend(query[part], keys, seen, step.layer.sinks, step.layer.scale)
    # After the read: in a chunk of a prompt the ring still holds what its first rows see.
    ring = window.shape[1]
    slot = rows[SLOT] * (positions >= rows[END] - ring)
    window[slot, positions % ring] = kv.to(window.dtype)


def _window_keys(
    step: Step,
    kv: torch.Tensor,
    window: torch.Tensor,
    positions: torch.Tensor,
    rows: torch.Tensor,
    start: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys `[n, window, dim]` of `n` rows from `start` on, and which of them are there."""
    back = torch.arange(step.layer.window - 1, -1, -1, device=kv.device)
    source = positions.unsqueeze(1) - back
    row = torch.arange(start, start + positions.shape[0], device=kv.device).unsqueeze(1) - back
    in_step = source >= rows[FIRST].unsqueeze(1)
    earlier = window[rows[SLOT].unsqueeze(1), source % window.shape[1]].to(kv.dtype)
    keys = torch.where(in_step.unsqueeze(-1), kv[row.clamp(min=0)], earlier)
    return keys, source >= 0


def _entry_count(step: Step, picks: torch.Tensor | None) -> int:
    if picks is not None:
        return picks.shape[1]
    if step.layer.kind == "sliding":
        return 0
    if step.is_prefill:
        return step.metadata.max_seqlen_k // step.layer.ratio
    return step.metadata.block_tables.shape[1] * step.caches["entries"].shape[1]


def _entries(step: Step, positions: torch.Tensor, picks: torch.Tensor | None) -> torch.Tensor | None:
    """Entry numbers `[n, k]` that rows attend to, -1 for none: picked ones, or all that a row may see."""
    count = _entry_count(step, picks)
    if picks is not None or count == 0:
        return picks
    numbers = torch.arange(count, device=positions.device)
    return torch.where(numbers < ((positions + 1) // step.layer.ratio).unsqueeze(1), numbers, -1)


def _entry_keys(
    step: Step, entries: torch.Tensor, sequence: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    pool = step.caches["entries"]
    place = pool_rows(step.metadata.block_tables[sequence], entries.clamp(min=0), pool.shape[1])
    return pool.flatten(0, 1)[place].to(dtype), entries >= 0


def _attend(
    query: torch.Tensor, keys: torch.Tensor, seen: torch.Tensor, sinks: torch.Tensor, scale: float
) -> torch.Tensor:
    """`[n, heads, dim]` as `query`; keys `[n, k, dim]`, of which `seen` `[n, k]` count. Float32 inside."""
    keys = keys.float()
    logits = torch.bmm(query.float(), keys.transpose(1, 2)) * scale
    logits = logits.masked_fill(~seen.unsqueeze(1), float("-inf"))
    sink = sinks.view(1, -1, 1).expand(logits.shape[0], -1, 1)
    weights = torch.cat((logits, sink), dim=-1).softmax(-1)[..., :-1]
    return torch.bmm(weights, keys).to(query.dtype)


direct_register_custom_op("v4_sparse_attention", v4_sparse_attention, mutates_args=["output"])
mark_spliting_op("aiter.v4_sparse_attention")
