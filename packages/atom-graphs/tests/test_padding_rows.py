"""Padding rows never touch a live row's cache, however full it is, and reach nobody's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from atom.graphs import ReqGraph, TokenGraph, eager_region

BLOCK, WIDTH, STEPS = 4, 3, 64
LIVE = 5


@dataclass
class Cache:
    """A paged cache with exactly the blocks its requests need, and block 0 for padding."""

    keys: torch.Tensor
    compressed: torch.Tensor
    tables: torch.Tensor

    @classmethod
    def full(cls, kind: Any, requests: int, bucket: int) -> Cache:
        each = STEPS // BLOCK
        blocks = 1 + requests * each
        tables = torch.zeros(bucket, each, dtype=torch.int64)
        # From the last block down, so that the last block and block 1 both belong to live requests.
        tables[:requests] = torch.arange(blocks - 1, 0, -1).view(requests, each)
        shape = (blocks, BLOCK, WIDTH)
        return cls(
            torch.zeros(shape, device=kind.device),
            torch.zeros(blocks, BLOCK, 1, device=kind.device),
            tables.to(kind.device),
        )

    def slots(self, step: int, requests: int, bucket: int) -> torch.Tensor:
        """int64 `[bucket]`; padding rows point into block 0."""
        live = self.tables[:requests, step // BLOCK] * BLOCK + step % BLOCK
        return torch.cat([live, torch.zeros(bucket - requests, dtype=torch.int64, device=live.device)])

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.keys, self.compressed


def attend(cache: Cache, q: torch.Tensor, slots: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Writes the rows' keys, then sums each sequence's cached rows; rows of length 0 give zeros."""
    flat = cache.keys.view(-1, WIDTH)
    flat.index_copy_(0, slots, q)
    cache.compressed.view(-1, 1).index_copy_(0, slots, q.mean(1, keepdim=True))
    rows = cache.keys[cache.tables[: q.shape[0]]].flatten(1, 2)
    seen = torch.arange(rows.shape[1], device=q.device) < lengths[:, None]
    return torch.where(seen[..., None], rows, 0.0).sum(1)


class Model:
    def __init__(self, kind: Any, cache: Cache, *, bucket_fixed: bool) -> None:
        self.attend = eager_region(attend, bucket_fixed=bucket_fixed)
        self.cache = cache
        self.weight = kind.randn(WIDTH, WIDTH, seed=7) / 2

    def __call__(self, x: torch.Tensor, slots: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.attend(self.cache, torch.tanh(x @ self.weight), slots, lengths) + x)


@pytest.mark.parametrize("live", [LIVE, 1, 0])
@pytest.mark.parametrize("how", ["token graph", "token graph that pads", "request graph", "eager"])
def test_only_the_live_rows_slots_change(kind: Any, how: str, live: int) -> None:
    bucket = 8
    cache = Cache.full(kind, max(live, 1), bucket)
    model = Model(kind, cache, bucket_fixed=how == "request graph")
    x = torch.full((bucket, WIDTH), float("nan"), device=kind.device)
    slots = torch.zeros(bucket, dtype=torch.int64, device=kind.device)
    lengths = torch.zeros(bucket, dtype=torch.int64, device=kind.device)
    tokens, requests = TokenGraph(model, recorder=kind.recorder), ReqGraph(recorder=kind.recorder)
    tokens.record(x, slots, lengths)
    if how == "request graph":
        requests.record(lambda: model(x, slots, lengths), bucket=(bucket, 0))
    for tensor in cache.tensors():
        tensor.zero_()
    for step in range(STEPS):
        before = [t.clone() for t in cache.tensors()]
        now = cache.slots(step, live, bucket)
        fresh = kind.randn(bucket, WIDTH, seed=step)
        counts = torch.full((bucket,), step + 1, device=kind.device)
        counts[live:] = 0
        if how == "token graph that pads" and live:
            got = tokens.replay(fresh[:live], now[:live], counts[:live])
        else:
            x.copy_(fresh)
            slots.copy_(now)
            lengths.copy_(counts)
            if how == "request graph":
                got = requests.replay((bucket, 0))[:live]
            elif how == "eager":
                got = model(x, slots, lengths)[:live]
            else:
                got = tokens.replay(x, slots, lengths)[:live]
        assert torch.isfinite(got).all()
        for tensor, was in zip(cache.tensors(), before, strict=True):
            changed = (tensor != was).any(-1).view(-1).nonzero().view(-1).tolist()
            assert set(changed) - set(range(BLOCK)) == set(now[:live].tolist())


def test_what_padding_rows_hold_reaches_no_live_row(kind: Any) -> None:
    bucket = 8
    outputs = []
    for filler in (0.0, 1e6):
        cache = Cache.full(kind, LIVE, bucket)
        model = Model(kind, cache, bucket_fixed=False)
        x = kind.randn(bucket, WIDTH)
        slots = cache.slots(0, LIVE, bucket)
        lengths = torch.tensor([1] * LIVE + [0] * (bucket - LIVE), device=kind.device)
        graph = TokenGraph(model, recorder=kind.recorder)
        graph.record(x, slots, lengths)
        x.copy_(kind.randn(bucket, WIDTH, seed=3))
        x[LIVE:] = filler
        outputs.append(graph.replay(x, slots, lengths)[:LIVE].clone())
    assert torch.equal(*outputs)
