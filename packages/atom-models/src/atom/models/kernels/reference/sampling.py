"""Greedy choice and temperature, top-k, top-p and min-p sampling."""

from __future__ import annotations

import torch

from atom.models.kernels.reference.precision import widen

_REACH = 30.0
_KEY_STEP = (0x9E3779B9, 0xBB67AE85)
_ROUND = (0xD2511F53, 0xCD9E8D57)
_LOW = 0xFFFFFFFF


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The first token of largest logit in each row of `[rows, vocab]`; int64 `[rows]`."""
    top = logits.max(dim=1, keepdim=True).values
    return (logits == top).int().argmax(dim=1)


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

    Computes in float64 where `logits` are, else in float32. Ties at a cut are kept.
    """
    values = widen(logits)
    hot = temperature > 0
    heat = torch.where(hot, temperature, 1.0).to(values.dtype)[:, None]
    distance = (values.max(dim=1, keepdim=True).values - values) / heat
    weight = torch.exp(-distance)
    kept = distance <= _REACH
    kept &= weight >= min_p[:, None]

    ordered, order = distance.sort(dim=1, stable=True)
    position = torch.arange(values.shape[1], device=values.device)
    last = (top_k.long() - 1).clamp(0, values.shape[1] - 1)[:, None]
    kept &= (top_k <= 0)[:, None] | (distance <= ordered.gather(1, last))

    # top-p: up to the first token at which the running share of what is left reaches it
    running = torch.where(kept, weight, 0.0).gather(1, order).cumsum(dim=1)
    enough = running >= top_p.to(values.dtype)[:, None] * running[:, -1:]
    edge = torch.where(enough, position, values.shape[1] - 1).min(dim=1, keepdim=True).values
    kept &= (top_p >= 1)[:, None] | (distance <= ordered.gather(1, edge))

    score = torch.where(
        kept, gumbel(seeds, steps, values.shape[1]).to(values.dtype) - distance, float("-inf")
    )
    return torch.where(hot, score.argmax(dim=1), greedy(logits))


def gumbel(seeds: torch.Tensor, steps: torch.Tensor, tokens: int) -> torch.Tensor:
    """float64 Gumbel noise `[rows, tokens]`, a function of seed, step and token."""
    counters = torch.arange(-(-tokens // 4), device=seeds.device)
    words = torch.stack(philox(seeds[:, None], counters, steps[:, None]), dim=-1).flatten(1)[:, :tokens]
    uniform = (words.double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-uniform))


def philox(seeds: torch.Tensor, counters: torch.Tensor, steps: torch.Tensor) -> list[torch.Tensor]:
    """The words (in [0, 2^32)) of Philox-4x32-10 (Salmon et al. 2011) at key seed and (counter, step)."""
    key = [seeds & _LOW, (seeds >> 32) & _LOW]
    zero = torch.zeros_like(seeds + counters + steps)
    counter = [zero + (counters & _LOW), zero + (steps & _LOW), zero, zero]
    for _ in range(10):
        high_0, low_0 = _multiply(counter[0], _ROUND[0])
        high_2, low_2 = _multiply(counter[2], _ROUND[1])
        counter = [high_2 ^ counter[1] ^ key[0], low_2, high_0 ^ counter[3] ^ key[1], low_0]
        key = [(key[0] + _KEY_STEP[0]) & _LOW, (key[1] + _KEY_STEP[1]) & _LOW]
    return counter


def _multiply(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low words of a 32 by 32 bit product, in int64 that would overflow if multiplied at once."""
    low_part = a * (b & 0xFFFF)
    high_part = a * (b >> 16) + (low_part >> 16)
    return high_part >> 16, ((high_part & 0xFFFF) << 16) | (low_part & 0xFFFF)
