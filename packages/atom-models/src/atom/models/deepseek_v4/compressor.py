"""Groups of tokens pooled into one entry: each channel is an average of its own, weighed by a softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from atom.models.deepseek_v4.rope import InterleavedRotary, rotate_trailing
from atom.models.deepseek_v4.step import END, FIRST, SEQUENCE, SLOT, pool_rows
from atom.models.layers.linear import FusedLinear
from atom.models.layers.norm import RMSNorm

if TYPE_CHECKING:
    from collections.abc import Callable


class Closing(NamedTuple):
    """Rows that may complete a group."""

    rows: torch.Tensor
    """int64 `[n]`."""
    is_closing: torch.Tensor
    """bool `[n]`, whether they do; those that do not write to padding."""


class Compressor(nn.Module):
    """One entry of `width` for each `ratio` tokens.

    With `overlap` an entry also pools the group before its own: the first half of a token's columns is its
    share in the next entry, the second half in its own. What the next step may need of this one's tokens is
    kept in a ring of `slots` rows a sequence, `[2, columns]` float32 each: values, and gates with their
    position bias.
    """

    def __init__(
        self,
        hidden_size: int,
        width: int,
        ratio: int,
        *,
        overlap: bool,
        eps: float,
        rotary: InterleavedRotary,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.width, self.ratio, self.overlap = width, ratio, overlap
        self.columns = width * (2 if overlap else 1)
        self.slots = ratio * (2 if overlap else 1)
        self.kv_gate_proj = FusedLinear(
            hidden_size, {"kv": self.columns, "gate": self.columns}, dtype=dtype, device=device
        )
        self.position_bias = nn.Parameter(
            torch.empty(ratio, self.columns, dtype=torch.float32, device=device), requires_grad=False
        )
        self.norm = RMSNorm(width, eps, dtype=torch.float32, device=device)
        self.rotary = rotary

    def run(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        *,
        closing: Closing,
        pool: torch.Tensor,
        state: torch.Tensor,
        tables: torch.Tensor,
        encode: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """Write the entries that this step completes, then what the next step needs.

        Args:
            x: `[rows, hidden]`, the attention's normed input.
            positions: int64 `[rows]`.
            rows: from `v4_step_rows`.
            closing: rows that may complete a group.
            pool: paged entries `[blocks, rows a block, ...]`.
            state: rings `[slots, ring, 2, columns]` float32.
            tables: int32 `[seqs, blocks]`.
            encode: an entry in the pool's format.
        """
        tokens = self.kv_gate_proj(x).float().view(-1, 2, self.columns)
        tokens[:, 1] += self.position_bias[positions % self.ratio]
        self._write_entries(tokens, positions, rows, closing, pool, state, tables, encode)
        # After the read: the ring may be as small as what is read.
        ring = state.shape[1]
        slot = rows[SLOT] * (positions >= rows[END] - ring)
        state[slot, positions % ring] = tokens

    def _write_entries(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        closing: Closing,
        pool: torch.Tensor,
        state: torch.Tensor,
        tables: torch.Tensor,
        encode: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> None:
        chosen, is_closing = closing
        position = positions[chosen]
        entry = position // self.ratio
        entries = self._pooled(tokens, chosen, position, rows, state)
        entries = rotate_trailing(self.norm(entries), self.rotary(entry * self.ratio))
        rows_per_block = pool.shape[1]
        place = pool_rows(tables[rows[SEQUENCE][chosen]], entry.unsqueeze(1), rows_per_block).squeeze(1)
        place = torch.where(is_closing, place, chosen % rows_per_block)
        written = entries.to(pool.dtype) if encode is None else encode(entries)
        pool.flatten(0, 1)[place] = written

    def _pooled(
        self,
        tokens: torch.Tensor,
        chosen: torch.Tensor,
        position: torch.Tensor,
        rows: torch.Tensor,
        state: torch.Tensor,
    ) -> torch.Tensor:
        """Float32 `[n, width]`: the groups that end at `chosen`, before norm and rotation."""
        back = torch.arange(self.slots - 1, -1, -1, device=position.device)
        source = position.unsqueeze(1) - back
        in_step = source >= rows[FIRST][chosen].unsqueeze(1)
        from_step = tokens[(chosen.unsqueeze(1) - back).clamp(min=0)]
        from_state = state[rows[SLOT][chosen].unsqueeze(1), source % state.shape[1]]
        found = torch.where(in_step[..., None, None], from_step, from_state)
        if self.overlap:
            before, own = found.chunk(2, dim=1)
            found = torch.cat((before[..., : self.width], own[..., self.width :]), dim=1)
        missing = (source < 0).unsqueeze(-1)
        values = found[:, :, 0].masked_fill(missing, 0.0)
        weights = found[:, :, 1].masked_fill(missing, float("-inf")).softmax(1)
        return (values * weights).sum(1)
