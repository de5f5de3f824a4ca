"""Greedy choice and temperature, top-k, top-p and min-p sampling, without a sort.

First stage: every chunk of a row finds its maximum, over many programs. Second stage, one program a row: it
lists, in token order, the candidates that the cuts could leave, bisects for the top-k and then the top-p cut
on that short list, and draws by inverse distribution function. A draw is a function of (seed, step) alone:
neither the batch a request shares nor its place in it changes its tokens.

What bounds the list: the k-th largest of the chunks' maxima is no larger than the k-th largest logit; tokens
further than log(vocab / (1 - p)) below the top cannot make up a share of 1 - p; and a token e^-30 times as
likely as the likeliest is never drawn, which float32 could not tell from the exact distribution. Tokens whose
logits tie at a cut are kept together.
"""
# ruff: noqa: N803 - compile-time constants are upper case, Triton's own habit

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.jit import jit
from atom.models.kernels.launch import Launcher

_CHUNK = 1024
_BLOCK = 4096
_PASSES = 12  # three pivots a pass: 4^12 steps between nothing and the furthest candidate


@jit
def _chunk_max_kernel(
    logits: tl.tensor,
    chunk_max: tl.tensor,
    chunk_token: tl.tensor,
    chunks: tl.tensor,
    STRIDE: tl.constexpr,
    VOCAB: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(logits + row * STRIDE + token, mask=token < VOCAB, other=float("-inf")).to(tl.float32)
    top, at = tl.max(values, axis=0, return_indices=True)
    tl.store(chunk_max + row * chunks + chunk, top)
    tl.store(chunk_token + row * chunks + chunk, chunk * CHUNK + at)


@jit
def _row_max(
    chunk_max: tl.tensor, chunk_token: tl.tensor, row: tl.tensor, chunks: tl.tensor, CHUNK_BLOCK: tl.constexpr
) -> tl.tensor:
    chunk = tl.arange(0, CHUNK_BLOCK)
    tops = tl.load(chunk_max + row * chunks + chunk, mask=chunk < chunks, other=float("-inf"))
    top, at = tl.max(tops, axis=0, return_indices=True)
    return top, tl.load(chunk_token + row * chunks + at)


@jit
def _kth_chunk_max(
    chunk_max: tl.tensor, row: tl.tensor, chunks: tl.tensor, k: tl.tensor, CHUNK_BLOCK: tl.constexpr
) -> tl.tensor:
    """The k-th largest of a row's chunk maxima, 1 <= k <= chunks."""
    chunk = tl.arange(0, CHUNK_BLOCK)
    tops = tl.load(chunk_max + row * chunks + chunk, mask=chunk < chunks, other=float("-inf"))
    before = (tops[None, :] > tops[:, None]) | (
        (tops[None, :] == tops[:, None]) & (chunk[None, :] < chunk[:, None])
    )
    rank = tl.sum(before.to(tl.int32), axis=1)
    return tl.max(tl.where(rank == k - 1, tops, float("-inf")), axis=0)


@jit
def _greedy_kernel(
    chunk_max: tl.tensor, chunk_token: tl.tensor, out: tl.tensor, chunks: tl.tensor, CHUNK_BLOCK: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    _, token = _row_max(chunk_max, chunk_token, row, chunks, CHUNK_BLOCK)
    tl.store(out + row, token.to(tl.int64))


@jit
def _find_cut(
    distance: tl.tensor, count: tl.tensor, reach: tl.tensor, furthest: tl.tensor, target: tl.tensor,
    BY_MASS: tl.constexpr, BLOCK: tl.constexpr, PASSES: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The least cut up to `reach` whose candidates (`distance <= cut`) come to `target` by count or mass."""
    low = -1.0
    high = reach
    step = 0
    while (step < PASSES) & (high - low > furthest * 1e-7):
        width = (high - low) / 4
        sum_1 = tl.zeros([BLOCK], dtype=tl.float32)
        sum_2 = tl.zeros([BLOCK], dtype=tl.float32)
        sum_3 = tl.zeros([BLOCK], dtype=tl.float32)
        for start in tl.range(0, count, BLOCK):
            index = start + tl.arange(0, BLOCK)
            far = tl.load(distance + index, mask=index < count, other=float("inf"))
            weight = tl.exp(-far) if BY_MASS else tl.full([BLOCK], 1.0, dtype=tl.float32)
            sum_1 += tl.where(far <= low + width, weight, 0.0)
            sum_2 += tl.where(far <= low + 2 * width, weight, 0.0)
            sum_3 += tl.where(far <= low + 3 * width, weight, 0.0)
        enough_1 = tl.sum(sum_1, axis=0) >= target
        enough_2 = tl.sum(sum_2, axis=0) >= target
        enough_3 = tl.sum(sum_3, axis=0) >= target
        pivot_1 = low + width
        pivot_2 = low + 2 * width
        pivot_3 = low + 3 * width
        high = tl.where(enough_1, pivot_1, tl.where(enough_2, pivot_2, tl.where(enough_3, pivot_3, high)))
        low = tl.where(enough_1, low, tl.where(enough_2, pivot_1, tl.where(enough_3, pivot_2, pivot_3)))
        step += 1
    return high


@jit
def _mass_within(distance: tl.tensor, count: tl.tensor, cut: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    mass = tl.zeros([BLOCK], dtype=tl.float32)
    for start in tl.range(0, count, BLOCK):
        index = start + tl.arange(0, BLOCK)
        far = tl.load(distance + index, mask=index < count, other=float("inf"))
        mass += tl.where(far <= cut, tl.exp(-far), 0.0)
    return tl.sum(mass, axis=0)


@jit
def _sample_kernel(
    logits: tl.tensor,
    chunk_max: tl.tensor,
    chunk_token: tl.tensor,
    distance: tl.tensor,
    candidate: tl.tensor,
    temperature: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    min_p: tl.tensor,
    seeds: tl.tensor,
    steps: tl.tensor,
    out: tl.tensor,
    chunks: tl.tensor,
    STRIDE: tl.constexpr,
    VOCAB: tl.constexpr,
    CHUNK_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    PASSES: tl.constexpr,
    REACH: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    top, best = _row_max(chunk_max, chunk_token, row, chunks, CHUNK_BLOCK)
    heat = tl.load(temperature + row)
    chosen = best
    if heat > 0:
        wanted = tl.load(top_k + row)
        nucleus = tl.load(top_p + row)
        floor = tl.load(min_p + row)
        furthest_of_min_p = tl.where(floor > 0, -tl.log(tl.maximum(floor, 1e-30)), REACH)
        reach = tl.minimum(furthest_of_min_p, REACH)
        if wanted > 0:
            if wanted <= chunks:
                reach = tl.minimum(
                    reach, (top - _kth_chunk_max(chunk_max, row, chunks, wanted, CHUNK_BLOCK)) / heat
                )
        else:
            reach = tl.minimum(reach, tl.log(VOCAB / tl.maximum(1.0 - nucleus, 1e-9)))
        far_list = distance + row * VOCAB
        token_list = candidate + row * VOCAB

        count = 0
        kept_mass = tl.zeros([BLOCK], dtype=tl.float32)
        full_mass = tl.zeros([BLOCK], dtype=tl.float32)
        for start in tl.range(0, VOCAB, BLOCK):
            token = start + tl.arange(0, BLOCK)
            value = tl.load(logits + row * STRIDE + token, mask=token < VOCAB, other=float("-inf")).to(
                tl.float32
            )
            far = (top - value) / heat
            near = far <= reach
            weight = tl.exp(-far)
            full_mass += tl.where(far <= furthest_of_min_p, weight, 0.0)
            kept_mass += tl.where(near, weight, 0.0)
            place = count + tl.cumsum(near.to(tl.int32), axis=0) - 1
            tl.store(far_list + place, far, mask=near)
            tl.store(token_list + place, token, mask=near)
            count += tl.sum(near.to(tl.int32), axis=0)
        tl.debug_barrier()  # the list is read back by other threads of this program
        mass = tl.sum(kept_mass, axis=0)
        total = tl.sum(full_mass, axis=0)  # what top-p counts: beyond the list too, unless top-k cuts it off
        cut = reach
        if wanted > 0:
            if wanted < count:
                cut = _find_cut(far_list, count, cut, reach, wanted.to(tl.float32), False, BLOCK, PASSES)
                mass = _mass_within(far_list, count, cut, BLOCK)
            total = mass
        if nucleus < 1:
            cut = _find_cut(far_list, count, cut, reach, nucleus * total, True, BLOCK, PASSES)
            mass = _mass_within(far_list, count, cut, BLOCK)

        step = tl.load(steps + row).to(tl.int32) + tl.zeros([1], dtype=tl.int32)
        draw = tl.sum(tl.rand(tl.load(seeds + row), step), axis=0) * mass
        passed = 0.0
        place = count  # of the drawn candidate; stays when rounding ate the last of the mass
        for start in tl.range(0, count, BLOCK):
            index = start + tl.arange(0, BLOCK)
            far = tl.load(far_list + index, mask=index < count, other=float("inf"))
            weight = tl.where(far <= cut, tl.exp(-far), 0.0)
            block_mass = tl.sum(weight, axis=0)
            if (place == count) & (passed + block_mass > draw):
                below = (passed + tl.cumsum(weight, axis=0) <= draw).to(tl.int32)
                place = start + tl.minimum(tl.sum(below, axis=0), BLOCK - 1)
            passed += block_mass
        chosen = tl.where(place < count, tl.load(token_list + place, mask=place < count, other=0), best)
    tl.store(out + row, chosen.to(tl.int64))


_launch_chunks = Launcher(_chunk_max_kernel)
_launch_greedy = Launcher(_greedy_kernel)
_launch_sample = Launcher(_sample_kernel)

# a token this far (in nats) below the likeliest is no candidate
_REACH = 30.0


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The first token of largest logit in each row of `[rows, vocab]`; int64 `[rows]`."""
    chunk_max, chunk_token = _chunk_maxima(logits)
    rows, chunks = chunk_max.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    _launch_greedy(
        (rows, 1, 1), (chunk_max, chunk_token, out, chunks), (triton.next_power_of_2(chunks),), num_warps=1
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
    temperature, min-p, top-k, then top-p on what is left. The draw is `uniform(seeds, steps)` of the torch
    twin.
    """
    chunk_max, chunk_token = _chunk_maxima(logits)
    rows, vocab = logits.shape
    settings = (temperature, top_k, top_p, min_p, seeds, steps)
    if any(setting.shape != (rows,) for setting in settings):
        raise KernelArgumentError(
            f"sample: every setting must be [{rows}], got {[tuple(s.shape) for s in settings]}"
        )
    chunks = chunk_max.shape[1]
    distance = torch.empty((rows, vocab), dtype=torch.float32, device=logits.device)
    candidate = torch.empty((rows, vocab), dtype=torch.int32, device=logits.device)
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    block = min(_BLOCK, triton.next_power_of_2(vocab))
    _launch_sample(
        (rows, 1, 1),
        (
            logits, chunk_max, chunk_token, distance, candidate, temperature, top_k, top_p, min_p, seeds,
            steps, out, chunks,
        ),
        (logits.stride(0), vocab, triton.next_power_of_2(chunks), block, _PASSES, _REACH),
        num_warps=16,
    )  # fmt: skip
    return out


def _chunk_maxima(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if logits.dim() != 2 or logits.stride(1) != 1:
        raise KernelArgumentError(
            f"sampling: logits must be [rows, vocab] with dense rows, got {tuple(logits.shape)} "
            f"with strides {logits.stride()}"
        )
    rows, vocab = logits.shape
    chunk = min(_CHUNK, triton.next_power_of_2(vocab))
    chunks = triton.cdiv(vocab, chunk)
    chunk_max = torch.empty((rows, chunks), dtype=torch.float32, device=logits.device)
    chunk_token = torch.empty((rows, chunks), dtype=torch.int32, device=logits.device)
    _launch_chunks(
        (rows, chunks, 1), (logits, chunk_max, chunk_token, chunks), (logits.stride(0), vocab, chunk)
    )
    return chunk_max, chunk_token
