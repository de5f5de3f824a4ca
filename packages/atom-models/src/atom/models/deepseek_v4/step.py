"""What an op of DeepSeek-V4 knows of the step: its layer, the caches, and whose row is whose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from atom.compile import direct_register_custom_op
from atom.graphs.forward_context import get_forward_context
from atom.models.layers.errors import AttentionSetupError

if TYPE_CHECKING:
    from atom.models.deepseek_v4.attention import DeepseekV4Attention
    from atom.models.deepseek_v4.metadata import DeepseekV4MetaData

SLOT, SEQUENCE, FIRST, END = range(4)
"""Rows of what `v4_step_rows` returns."""


@dataclass(frozen=True)
class Step:
    """One layer's view of the step."""

    layer: DeepseekV4Attention
    metadata: DeepseekV4MetaData
    caches: dict[str, torch.Tensor]
    """Cache tensors of the layer, by the names in `DeepseekV4Attention.cache_spec`."""
    is_prefill: bool
    """A prefill is never recorded, so its shapes may follow the step's lengths."""


def step_of(layer_id: int) -> Step | None:
    """The step in the forward context; None outside of one, when shapes are traced.

    Raises:
        AttentionSetupError: the context knows no such layer, or no cache for it.
    """
    context = get_forward_context()
    if context.attn_metadata is None:
        return None
    layer = context.no_compile_layers.get(layer_id)
    if layer is None:
        raise AttentionSetupError(f"attention layer {layer_id} is not in the forward context")
    cache = context.kv_cache_data.get(layer.layer_name)
    if cache is None:
        raise AttentionSetupError(
            f"attention layer {layer.layer_name!r} has no cache: allocate one for each of kv_cache_spec()"
        )
    metadata: Any = context.attn_metadata
    is_prefill = context.context is not None and context.context.is_prefill
    return Step(layer, metadata, cache.tensors, is_prefill)


def v4_step_rows(positions: torch.Tensor) -> torch.Tensor:
    """What is known of each row, int64 `[4, rows]`, of int64 positions `[rows]`:

    - SLOT: slot of its sequence's state, 0 for padding;
    - SEQUENCE: row of the block tables;
    - FIRST: position of its sequence's first row in this step;
    - END: tokens of its sequence once the step is done.
    """
    metadata: Any = get_forward_context().attn_metadata
    if metadata is None:
        return positions.new_zeros((4, positions.shape[0]))
    ends = metadata.cu_seqlens_q[1:].long()
    row = torch.arange(positions.shape[0], device=positions.device)
    sequence = torch.searchsorted(ends, row, right=True)
    owned = sequence < ends.shape[0]
    sequence = sequence.clamp(max=ends.shape[0] - 1)
    slot = metadata.state_slots[sequence].long() * owned
    first = positions - row + metadata.cu_seqlens_q[sequence].long()
    return torch.stack((slot, sequence, first, metadata.seq_lens[sequence].long()))


def _v4_step_rows_fake(positions: torch.Tensor) -> torch.Tensor:
    return positions.new_empty((4, positions.shape[0]))


direct_register_custom_op("v4_step_rows", v4_step_rows, mutates_args=[], fake_impl=_v4_step_rows_fake)


def pool_rows(tables: torch.Tensor, entries: torch.Tensor, rows_per_block: int) -> torch.Tensor:
    """Where compressed entries lie in a pool `[blocks * rows_per_block, ...]`.

    Args:
        tables: int32 `[rows, blocks]`, each row's block table.
        entries: int64 `[rows, n]`, numbers of entries in their sequence, none below 0.
    """
    block = tables.gather(1, entries // rows_per_block).long()
    return block * rows_per_block + entries % rows_per_block
