"""Embedding gather from a whole table or one rank's share of it."""
# ruff: noqa: N803 - compile-time constants are upper case, Triton's own habit

from __future__ import annotations

import torch
import triton.language as tl

from atom.models.kernels.dependent_launch import inputs_ready, let_next_start
from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.jit import jit
from atom.models.kernels.launch import Launcher
from atom.models.kernels.tiling import ceil_div, next_power_of_2


@jit
def _embedding_kernel(
    ids: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    vocab_start: tl.tensor,
    VOCAB: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inputs_ready(OVERLAP)
    let_next_start(OVERLAP)
    entry = tl.load(ids + row).to(tl.int64) - vocab_start
    # an id that is not held reads nothing and gives zeros: the other ranks' sum supplies it
    readable = tl.where((entry >= 0) & (entry < VOCAB), HIDDEN, 0)
    values = tl.load(table + entry * HIDDEN + column, mask=column < readable, other=0.0)
    tl.store(out + row * HIDDEN + column, values, mask=column < HIDDEN)


_launch = Launcher(_embedding_kernel)


def embedding(ids: torch.Tensor, table: torch.Tensor, vocab_start: int = 0) -> torch.Tensor:
    """Rows `ids - vocab_start` of `table` `[vocab, hidden]`; an id outside the table gives a row of zeros.

    `ids` is int64 or int32 `[rows]`; returns a new `[rows, hidden]`.
    """
    vocab, hidden = table.shape
    if ids.dim() != 1 or not table.is_contiguous():
        raise KernelArgumentError(
            f"embedding: ids must be [rows] and table dense, got ids {tuple(ids.shape)}"
        )
    out = torch.empty((ids.shape[0], hidden), dtype=table.dtype, device=table.device)
    block = min(1024, next_power_of_2(hidden))
    grid = (ids.shape[0], ceil_div(hidden, block), 1)
    _launch(grid, (ids, table, out, vocab_start), (vocab, hidden, block))
    return out
