"""Greedy choice and temperature, top-k, top-p and min-p sampling, without a sort.

Three launches. (1) Every chunk of a row finds its maximum. (2) Every chunk either draws at once, where
nothing but min-p cuts the row, or lists the tokens that the cuts could leave. (3) One program a row bisects
that short list for the top-k and then the top-p cut, and draws.

A draw takes the largest of `logit / temperature + Gumbel noise` (the exponential race), the noise a function
of (seed, step, token) alone, and weights are summed in fixed point: neither the batch a request shares, nor
its place in it, nor the order in which chunks finish changes a token.

What bounds the list: the k-th largest of the chunks' maxima is no larger than the k-th largest logit; tokens
further than log(vocab / (1 - p)) below the top cannot make up a share of 1 - p; and a token less than e^-30
times as likely as the likeliest is not drawn, which float32 could not tell from the exact distribution.
Tokens whose logits tie at a cut are kept together.
"""
# ruff: noqa: N803 - compile-time constants are upper case, Triton's own habit

from __future__ import annotations

import torch
import triton.language as tl

from atom.models.kernels.chunk_maxima import CHUNK, find_maxima, kth_largest, largest
from atom.models.kernels.dependent_launch import inputs_ready, let_next_start
from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.jit import jit
from atom.models.kernels.launch import Launcher
from atom.models.kernels.sampling_search import find_cut, fixed_point, mass_within
from atom.models.kernels.tiling import ceil_div, next_power_of_2

_BLOCK = 4096  # tokens a program of the second stage takes, and the third at a time
_PASSES = 12  # of the bisection, three pivots each: 4^12 steps between nothing and the furthest candidate
_REACH = 30.0  # a token this far (in nats) below the likeliest is no candidate


@jit
def _noise_words(seed: tl.tensor, step: tl.tensor, counter: tl.tensor) -> tl.tensor:
    """Four words of Philox at key seed, (counter, step, 0, 0): for tokens 4 * counter to 4 * counter + 3."""
    zero = counter * 0
    return tl.philox(seed, counter, zero + step, zero, zero)


@jit
def _gumbel(bits: tl.tensor) -> tl.tensor:
    """Gumbel noise of 32 random bits."""
    u = (bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    # -log(1 - u), accurate where u is small: those are the noises that win
    exponential = tl.where(u < 1e-3, u * (1.0 + u * (0.5 + u * 0.33333334)), -tl.log(1.0 - u))
    return -tl.log(exponential)


@jit
def _greedy_kernel(
    values: tl.tensor,
    tokens: tl.tensor,
    out: tl.tensor,
    CHUNKS: tl.constexpr,
    CHUNK_BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    inputs_ready(OVERLAP)
    let_next_start(OVERLAP)
    _, token = largest(values + row * WIDTH, tokens + row * WIDTH, CHUNKS, CHUNK_BLOCK)
    tl.store(out + row, token.to(tl.int64))


@jit
def _list_kernel(
    logits: tl.tensor,
    values: tl.tensor,
    tokens: tl.tensor,
    totals: tl.tensor,
    temperature: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    min_p: tl.tensor,
    seeds: tl.tensor,
    steps: tl.tensor,
    STRIDE: tl.constexpr,
    VOCAB: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr,
    REACH: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    values += row * WIDTH
    tokens += row * WIDTH
    inputs_ready(OVERLAP)
    let_next_start(OVERLAP)
    heat = tl.load(temperature + row)
    if heat > 0:
        wanted = tl.load(top_k + row)
        nucleus = tl.load(top_p + row)
        floor = tl.load(min_p + row)
        value = tl.load(logits + row * STRIDE + token, mask=token < VOCAB, other=float("-inf")).to(tl.float32)
        top, _ = largest(values, tokens, CHUNKS, CHUNK_BLOCK)
        far = (top - value) / heat
        furthest = tl.minimum(tl.where(floor > 0, -tl.log(tl.maximum(floor, 1e-30)), REACH), REACH)
        if (wanted <= 0) & (nucleus >= 1):
            counter = block * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
            w0, w1, w2, w3 = _noise_words(tl.load(seeds + row), tl.load(steps + row).to(tl.int32), counter)
            noise = _gumbel(tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3)))
            score = tl.where(far <= furthest, noise - far, float("-inf"))
            best, at = tl.max(score, axis=0, return_indices=True)
            tl.store(values + CHUNKS + block, best)
            tl.store(tokens + CHUNKS + block, block * BLOCK + at)
        else:
            reach = furthest
            if wanted <= 0:
                reach = tl.minimum(reach, tl.log(VOCAB / tl.maximum(1.0 - nucleus, 1e-9)))
            elif wanted <= CHUNKS:
                reach = tl.minimum(reach, (top - kth_largest(values, CHUNKS, wanted, CHUNK_BLOCK)) / heat)
            near = (far <= reach).to(tl.int32)
            here = tl.sum(near, axis=0)
            mass = tl.sum(tl.where(far <= furthest, fixed_point(far), 0), axis=0)
            tl.atomic_add(totals + row * 2 + 1, mass, sem="relaxed")
            if here > 0:
                begin = tl.atomic_add(totals + row * 2, here.to(tl.int64), sem="relaxed")
                place = CHUNKS + BLOCKS + begin + tl.cumsum(near, axis=0) - 1
                tl.store(values + place, far, mask=near > 0)
                tl.store(tokens + place, token, mask=near > 0)


@jit
def _draw_kernel(
    values: tl.tensor,
    tokens: tl.tensor,
    totals: tl.tensor,
    temperature: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    seeds: tl.tensor,
    steps: tl.tensor,
    out: tl.tensor,
    CHUNKS: tl.constexpr,
    CHUNK_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCKS_BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    PASSES: tl.constexpr,
    REACH: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    values += row * WIDTH
    tokens += row * WIDTH
    inputs_ready(OVERLAP)
    let_next_start(OVERLAP)
    _, chosen = largest(values, tokens, CHUNKS, CHUNK_BLOCK)
    if tl.load(temperature + row) > 0:
        wanted = tl.load(top_k + row)
        nucleus = tl.load(top_p + row)
        if (wanted <= 0) & (nucleus >= 1):
            best, drawn = largest(values + CHUNKS, tokens + CHUNKS, BLOCKS, BLOCKS_BLOCK)
            chosen = tl.where(best > float("-inf"), drawn, chosen)
        else:
            far_list = values + CHUNKS + BLOCKS
            count = tl.load(totals + row * 2).to(tl.int32)
            total = tl.load(totals + row * 2 + 1)
            cut = tl.full([], REACH, tl.float32)
            if wanted > 0:
                if wanted < count:
                    cut = find_cut(far_list, count, cut, wanted.to(tl.int64), False, BLOCK, PASSES)
                total = mass_within(far_list, count, cut, BLOCK)  # top-p counts what top-k left
            if nucleus < 1:
                share = (total.to(tl.float32) * nucleus).to(tl.int64)
                cut = find_cut(far_list, count, cut, share, True, BLOCK, PASSES)
            seed = tl.load(seeds + row)
            step = tl.load(steps + row).to(tl.int32)
            best_score = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
            best_token = tl.zeros([BLOCK], dtype=tl.int32)
            for start in tl.range(0, count, BLOCK):
                place = start + tl.arange(0, BLOCK)
                far = tl.load(far_list + place, mask=place < count, other=float("inf"))
                token = tl.load(tokens + CHUNKS + BLOCKS + place, mask=place < count, other=0)
                w0, w1, w2, w3 = _noise_words(seed, step, token // 4)
                word = tl.where(
                    token % 2 == 0, tl.where(token % 4 == 0, w0, w2), tl.where(token % 4 == 1, w1, w3)
                )
                score = tl.where(far <= cut, _gumbel(word) - far, float("-inf"))
                better = score > best_score
                best_score = tl.where(better, score, best_score)
                best_token = tl.where(better, token, best_token)
            best = tl.max(best_score, axis=0)
            drawn = tl.min(tl.where(best_score == best, best_token, 2147483647), axis=0)
            chosen = tl.where(best > float("-inf"), drawn, chosen)
    tl.store(out + row, chosen.to(tl.int64))


_launch_greedy = Launcher(_greedy_kernel)
_launch_list = Launcher(_list_kernel)
_launch_draw = Launcher(_draw_kernel)


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The first token of largest logit in each row of `[rows, vocab]`; int64 `[rows]`."""
    rows, chunks = _shape(logits)
    values, tokens, totals, out = _buffers(logits, chunks)
    find_maxima(logits, values, tokens, totals, chunks)
    _launch_greedy(
        (rows, 1, 1), (values, tokens, out), (chunks, next_power_of_2(chunks), chunks), num_warps=1
    )
    return out


def sample(
    logits: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    steps: torch.Tensor,
) -> torch.Tensor:
    """One token a row of `[rows, vocab]`; int64 `[rows]`. A row of temperature 0 is greedy.

    All settings are `[rows]` on the device: temperature, top_p (1 = off) and min_p (0 = off) float32; top_k
    (0 = off) int32; seeds int64; steps int64, of which the low 32 bits count. Cuts apply in the order
    temperature, min-p, top-k, then top-p on what is left.
    """
    rows, chunks = _shape(logits)
    vocab = logits.shape[1]
    settings = (temperature, top_k, top_p, min_p, seeds, steps)
    if any(setting.shape != (rows,) for setting in settings):
        raise KernelArgumentError(
            f"sample: every setting must be [{rows}], got {[tuple(s.shape) for s in settings]}"
        )
    block = max(4, min(_BLOCK, next_power_of_2(vocab)))
    blocks = ceil_div(vocab, block)
    width = chunks + blocks + vocab
    values, tokens, totals, out = _buffers(logits, width)
    find_maxima(logits, values, tokens, totals, chunks)
    chunk_block = next_power_of_2(chunks)
    _launch_list(
        (rows, blocks, 1),
        (logits, values, tokens, totals, temperature, top_k, top_p, min_p, seeds, steps),
        (logits.stride(0), vocab, chunks, chunk_block, block, blocks, width, _REACH),
        num_warps=8,
    )
    _launch_draw(
        (rows, 1, 1),
        (values, tokens, totals, temperature, top_k, top_p, seeds, steps, out),
        (chunks, chunk_block, min(block, 2048), blocks, next_power_of_2(blocks), width, _PASSES, _REACH),
        num_warps=8,
    )
    return out


def _shape(logits: torch.Tensor) -> tuple[int, int]:
    """Rows, and chunks a row."""
    if logits.dim() != 2 or logits.stride(1) != 1:
        raise KernelArgumentError(
            f"sampling: logits must be [rows, vocab] with dense rows, got {tuple(logits.shape)} "
            f"with strides {logits.stride()}"
        )
    return logits.shape[0], ceil_div(logits.shape[1], CHUNK)


def _buffers(
    logits: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values and tokens `[rows, width]` (chunk maxima, block draws, list), totals (count, mass), out."""
    rows, device = logits.shape[0], logits.device
    values = torch.empty((rows, width), dtype=torch.float32, device=device)
    tokens = torch.empty((rows, width), dtype=torch.int32, device=device)
    totals = torch.empty((rows, 2), dtype=torch.int64, device=device)
    return values, tokens, totals, torch.empty(rows, dtype=torch.int64, device=device)
