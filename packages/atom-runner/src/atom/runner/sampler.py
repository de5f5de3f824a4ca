"""Choosing tokens from logits: on the device, for all sequences of a step at once.

A sequence's token never depends on what else is in the batch. Greedy sequences take the largest logit. The
others draw by inverting the cumulative distribution at one random number each, and filters are thresholds on
values, so that sequences with and without filters can share a step and equal logits need no order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atom.runner.random_numbers import uniforms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom.runner.request import Request

_MASKED = float("-inf")
_FLOAT32 = torch.finfo(torch.float32)


@dataclass(frozen=True)
class SamplingBatch:
    """The sampling settings of the sequences of one step, as arrays in batch order."""

    temperature: np.ndarray[Any, Any]
    top_k: np.ndarray[Any, Any]
    top_p: np.ndarray[Any, Any]
    min_p: np.ndarray[Any, Any]
    uniform: np.ndarray[Any, Any]

    @classmethod
    def of(cls, requests: Sequence[Request]) -> SamplingBatch:
        """Settings of `requests`, and each one's random number for its next token."""
        params = [request.params for request in requests]
        seeds = np.array([request.seed for request in requests], dtype=np.uint64)
        places = np.array([request.num_generated for request in requests], dtype=np.int64)
        return cls(
            temperature=np.array([max(p.temperature, _FLOAT32.tiny) for p in params], dtype=np.float32),
            top_k=np.array([p.top_k for p in params], dtype=np.int64),
            top_p=np.array([p.top_p for p in params], dtype=np.float32),
            min_p=np.array([p.min_p for p in params], dtype=np.float32),
            uniform=uniforms(seeds, places),
        )


class Sampler:
    """Turns logits into token ids."""

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        """`num_rows` requests can run at once; the tokens they have seen are kept by row where they
        matter."""
        self.device = device
        self.num_rows = num_rows
        self.vocab_size = vocab_size
        self._seen: torch.Tensor | None = None
        self._seen_by: list[Request | None] = [None] * num_rows
        self._seen_upto = [0] * num_rows
        self._known: Sequence[Request] = []
        """The requests of the last step: what they want is looked at once, not at each step."""
        self._drawing: list[int] = []
        self._penalised: list[int] = []

    def sample(self, logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
        """The next token of each request: int64 `[n]` on the device, from float32 logits `[n, vocab]`.

        Row `i` of the logits belongs to `requests[i]`. The logits may be changed.
        """
        if requests != self._known:
            self._look_at(requests)
        if self._penalised:
            self._penalise(logits, requests)
        drawing = self._drawing
        if len(drawing) < len(requests):
            chosen = logits.argmax(dim=-1)
        if drawing:
            settings = SamplingBatch.of([requests[i] for i in drawing])
            if len(drawing) == len(requests):
                return self._draw(logits, settings)
            index = torch.tensor(drawing, device=self.device)
            chosen[index] = self._draw(logits[index], settings)
        return chosen

    def _look_at(self, requests: Sequence[Request]) -> None:
        self._known = list(requests)
        self._drawing = [i for i, request in enumerate(requests) if not request.params.greedy]
        self._penalised = [i for i, r in enumerate(requests) if r.params.repetition_penalty != 1.0]

    def warm_up(self, logits: torch.Tensor) -> None:
        """Take every path once with these logits, all of them changed and dropped."""
        n = logits.shape[0]
        every = np.ones(n)
        settings = SamplingBatch(
            every.astype(np.float32),
            every.astype(np.int64),
            (every / 2).astype(np.float32),
            (every / 2).astype(np.float32),
            every / 2,
        )
        self._draw(logits, settings)

    def _draw(self, logits: torch.Tensor, settings: SamplingBatch) -> torch.Tensor:
        # The largest is taken off first: no temperature, however small, divides it to infinity.
        scaled = logits.sub_(logits.amax(dim=-1, keepdim=True)).div_(self._column(settings.temperature))
        limited = np.flatnonzero((settings.top_k > 0) & (settings.top_k < scaled.shape[-1]))
        if limited.size:
            _keep(scaled, limited, _top_k_threshold(scaled[self._index(limited)], settings.top_k[limited]))
        nucleus = np.flatnonzero(settings.top_p < 1)
        if nucleus.size:
            top_p = self._column(settings.top_p[nucleus])
            _keep(scaled, nucleus, _top_p_threshold(scaled[self._index(nucleus)], top_p))
        probabilities = scaled.softmax(dim=-1)
        if (settings.min_p > 0).any():
            floor = probabilities.amax(dim=-1, keepdim=True) * self._column(settings.min_p)
            probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
        # Doubles: over a large vocabulary single precision would shift the boundaries between tokens.
        cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
        target = cumulative[:, -1:] * self._column(settings.uniform)
        # A broken model's NaN finds no place; an id beyond the vocabulary would break the step of all others.
        places = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
        return places.clamp_(max=cumulative.shape[-1] - 1)

    def _penalise(self, logits: torch.Tensor, requests: Sequence[Request]) -> None:
        """Divide positive logits of seen tokens by the penalty, multiply negative ones (Keskar et al.,
        2019)."""
        rows, penalised = self._penalised, [requests[i] for i in self._penalised]
        seen = self._update_seen(penalised)
        index = torch.tensor(rows, device=self.device)
        penalty = self._column(np.array([r.params.repetition_penalty for r in penalised], dtype=np.float32))
        chosen = logits[index]
        changed = torch.where(chosen > 0, chosen / penalty, chosen * penalty)
        changed.clamp_(_FLOAT32.min, _FLOAT32.max)  # an extreme penalty gives no infinity, whose share is NaN
        logits[index] = torch.where(seen, changed, chosen)

    def _update_seen(self, requests: Sequence[Request]) -> torch.Tensor:
        """Bool `[n, vocab]`: tokens that each request has seen. Only what is new since the last call is
        sent."""
        if self._seen is None:
            self._seen = torch.zeros((self.num_rows, self.vocab_size), dtype=torch.bool, device=self.device)
        rows: list[int] = []
        tokens: list[int] = []
        for request in requests:
            row = request.row
            if self._seen_by[row] is not request:
                self._seen_by[row], self._seen_upto[row] = request, 0
                self._seen[row] = False
            fresh = request.token_ids[self._seen_upto[row] :]
            self._seen_upto[row] = len(request.token_ids)
            rows += [row] * len(fresh)
            tokens += fresh
        self._seen[torch.tensor(rows, device=self.device), torch.tensor(tokens, device=self.device)] = True
        return self._seen[torch.tensor([request.row for request in requests], device=self.device)]

    def _column(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device, non_blocking=True).unsqueeze(-1)

    def _index(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device, non_blocking=True)


def _keep(scaled: torch.Tensor, rows: np.ndarray[Any, Any], threshold: torch.Tensor) -> None:
    """Mask what lies below each row's threshold, in place."""
    index = torch.from_numpy(rows).to(scaled.device, non_blocking=True)
    kept = scaled[index]
    scaled[index] = kept.masked_fill(kept < threshold, _MASKED)


def _top_k_threshold(scaled: torch.Tensor, top_k: np.ndarray[Any, Any]) -> torch.Tensor:
    """The `top_k`-th largest value of each row, `[n, 1]`. Equal values at the limit all stay."""
    largest = scaled.topk(int(top_k.max()), dim=-1).values
    at = torch.from_numpy(top_k - 1).to(scaled.device, non_blocking=True).unsqueeze(-1)
    return largest.gather(-1, at)


def _top_p_threshold(scaled: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The value at which each row's sorted probabilities first reach `top_p`, `[n, 1]`."""
    ordered = scaled.sort(dim=-1, descending=True).values
    reached = ordered.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    # A token is needed as long as those before it fall short; the first one always is.
    needed = (reached < top_p).sum(dim=-1, keepdim=True).clamp_(max=scaled.shape[-1] - 1)
    return ordered.gather(-1, needed)
