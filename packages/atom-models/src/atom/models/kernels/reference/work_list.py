"""The list of query tiles that prefill attention walks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from atom.models.kernels.attention_plan import PrefillPlan


def build_work_list(
    cu_seqlens_q: torch.Tensor, seq_lens: torch.Tensor, rows: int, plan: PrefillPlan, work_list: torch.Tensor
) -> None:
    """Fill `work_list` int32 `[plan.items, 4]` for a step padded to `rows` query rows."""
    starts = cu_seqlens_q.tolist()
    items: list[tuple[int, int, int, int]] = []
    for seq, keys in enumerate(seq_lens.tolist()):
        length = starts[seq + 1] - starts[seq]
        for offset in _last_first(length, plan.block_q):
            count = min(plan.block_q, length - offset)
            items.append((seq, starts[seq] + offset, count, keys - length + offset + count if keys else 0))
    padding = rows - starts[-1]
    for offset in _last_first(padding, plan.block_q):
        items.append((0, starts[-1] + offset, min(plan.block_q, padding - offset), 0))
    work_list.zero_()
    if items:
        work_list[: len(items)] = torch.tensor(items, dtype=work_list.dtype)


def _last_first(length: int, step: int) -> list[int]:
    return list(range(0, length, step))[::-1]
