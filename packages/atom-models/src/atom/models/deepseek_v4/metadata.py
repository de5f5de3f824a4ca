"""From a step's inputs to the metadata of DeepSeek-V4's attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

from atom.graphs.forward_context import AttentionMetaData
from atom.models.layers.attention_metadata import AttentionInputs


@dataclass
class DeepseekV4MetaData(AttentionMetaData):
    """Attention metadata with each sequence's slot, and what prefill plans once for all layers."""

    state_slots: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int32))
    """int32 `[seqs]`, slot of each sequence's window and compressor state; 0 for a padding sequence."""
    _closing: dict[int, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def closing_rows(self, ratio: int) -> torch.Tensor:
        """Rows whose token completes a group of `ratio` tokens, int64, from the host's lengths."""
        known = self._closing.get(ratio)
        if known is None:
            rows: list[int] = []
            begin = 0
            for query_len, seq_len in zip(self.query_lens_host, self.seq_lens_host, strict=True):
                first = seq_len - query_len
                skipped = -(first + 1) % ratio
                rows.extend(range(begin + skipped, begin + query_len, ratio))
                begin += query_len
            known = self._closing[ratio] = torch.tensor(
                rows, dtype=torch.int64, device=self.block_tables.device
            )
        return known


class StatefulInputs(AttentionInputs, Protocol):
    """What the builder reads of a step."""

    if TYPE_CHECKING:
        state_slots: torch.Tensor


class DeepseekV4MetadataBuilder:
    """Slices the step's buffers to the rows and sequences that run; addresses stay those of the buffers."""

    def build(
        self,
        batch: StatefulInputs,
        *,
        running_bs: int,
        running_tokens: int,
        request_bucket: tuple[int, int] | None,
    ) -> DeepseekV4MetaData:
        """Metadata for `running_bs` sequences in `running_tokens` rows, padding included."""
        return DeepseekV4MetaData(
            cu_seqlens_q=batch.cu_seqlens_q[: running_bs + 1],
            seq_lens=batch.seq_lens[:running_bs],
            block_tables=batch.block_tables[:running_bs],
            slot_mapping=batch.slot_mapping[:running_tokens],
            state_slots=batch.state_slots[:running_bs],
            max_seqlen_q=batch.max_seqlen_q,
            max_seqlen_k=batch.max_seqlen_k,
            request_bucket=request_bucket,
            query_lens_host=list(batch.query_lens_host),
            seq_lens_host=list(batch.seq_lens_host),
        )
