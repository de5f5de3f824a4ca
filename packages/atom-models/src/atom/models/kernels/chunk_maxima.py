"""Maxima of a row's chunks: the first stage of every draw, and what bounds a row's k-th largest logit."""
# ruff: noqa: N803 - compile-time constants are upper case, Triton's own habit

from __future__ import annotations

from typing import TYPE_CHECKING

import triton.language as tl

from atom.models.kernels.dependent_launch import inputs_ready, let_next_start
from atom.models.kernels.jit import jit
from atom.models.kernels.launch import Launcher

if TYPE_CHECKING:
    import torch

CHUNK = 1024  # small, so that the maxima bound the k-th largest logit well for the usual k


@jit
def _chunk_max_kernel(
    logits: tl.tensor,
    values: tl.tensor,
    tokens: tl.tensor,
    totals: tl.tensor,
    STRIDE: tl.constexpr,
    VOCAB: tl.constexpr,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    inputs_ready(OVERLAP)
    let_next_start(OVERLAP)
    value = tl.load(logits + row * STRIDE + token, mask=token < VOCAB, other=float("-inf")).to(tl.float32)
    top, at = tl.max(value, axis=0, return_indices=True)
    tl.store(values + row * WIDTH + chunk, top)
    tl.store(tokens + row * WIDTH + chunk, chunk * CHUNK + at)
    if chunk == 0:  # the second stage counts from here
        tl.store(totals + row * 2, tl.full([], 0, tl.int64))
        tl.store(totals + row * 2 + 1, tl.full([], 0, tl.int64))


@jit
def largest(values: tl.tensor, tokens: tl.tensor, count: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """The largest of `count` values and its token."""
    place = tl.arange(0, BLOCK)
    value = tl.load(values + place, mask=place < count, other=float("-inf"))
    top, at = tl.max(value, axis=0, return_indices=True)
    return top, tl.load(tokens + at)


@jit
def kth_largest(values: tl.tensor, count: tl.constexpr, k: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """The k-th largest of `count` values, 1 <= k <= count."""
    place = tl.arange(0, BLOCK)
    value = tl.load(values + place, mask=place < count, other=float("-inf"))
    tied_before = (value[None, :] == value[:, None]) & (place[None, :] < place[:, None])
    before = (value[None, :] > value[:, None]) | tied_before
    rank = tl.sum(before.to(tl.int32), axis=1)
    return tl.max(tl.where(rank == k - 1, value, float("-inf")), axis=0)


_launch = Launcher(_chunk_max_kernel)


def find_maxima(
    logits: torch.Tensor, values: torch.Tensor, tokens: torch.Tensor, totals: torch.Tensor, chunks: int
) -> None:
    """Write the chunks' maxima and their tokens to the first columns of `values`, `tokens`; zero `totals`."""
    _launch(
        (logits.shape[0], chunks, 1),
        (logits, values, tokens, totals),
        (logits.stride(0), logits.shape[1], CHUNK, values.shape[1]),
    )
