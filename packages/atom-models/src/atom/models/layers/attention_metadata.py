"""From a step's inputs to the metadata of the torch attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from atom.graphs.forward_context import AttentionMetaData
from atom.models.layers.attention_plan import RaggedPlan, plan_ragged

if TYPE_CHECKING:
    import torch


@dataclass
class TorchAttentionMetaData(AttentionMetaData):
    """Attention metadata that keeps the ragged body's plan from one layer to the next."""

    _plan: RaggedPlan | None = field(default=None, init=False, repr=False, compare=False)

    def plan(self, *, block_size: int, dtype: torch.dtype, paged: bool = False) -> RaggedPlan:
        """The plan for caches of `block_size` and queries of `dtype`, made at the first call."""
        plan = self._plan
        if plan is None or (plan.block_size, plan.dtype, plan.paged) != (block_size, dtype, paged):
            plan = self._plan = plan_ragged(self, block_size=block_size, dtype=dtype, paged=paged)
        return plan


class AttentionInputs(Protocol):
    """What the builder reads of a step: host lists, and buffers long enough for the largest bucket."""

    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    query_lens_host: list[int]
    seq_lens_host: list[int]
    max_seqlen_q: int
    max_seqlen_k: int


class AttentionMetadataBuilder:
    """Slices the step's buffers to the rows and sequences that run; addresses stay those of the buffers."""

    def build(
        self,
        batch: AttentionInputs,
        *,
        running_bs: int,
        running_tokens: int,
        request_bucket: tuple[int, int] | None,
    ) -> TorchAttentionMetaData:
        """Metadata for `running_bs` sequences in `running_tokens` rows, padding included."""
        return TorchAttentionMetaData(
            cu_seqlens_q=batch.cu_seqlens_q[: running_bs + 1],
            seq_lens=batch.seq_lens[:running_bs],
            block_tables=batch.block_tables[:running_bs],
            slot_mapping=batch.slot_mapping[:running_tokens],
            max_seqlen_q=batch.max_seqlen_q,
            max_seqlen_k=batch.max_seqlen_k,
            request_bucket=request_bucket,
            query_lens_host=list(batch.query_lens_host),
            seq_lens_host=list(batch.seq_lens_host),
        )
