"""Random programs of segments and regions, replayed in random order, equal eager bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atom.graphs import TokenGraph, eager_region

WIDTH = 6
MAX_ROWS = 8


@dataclass
class Parcel:
    left: torch.Tensor
    right: torch.Tensor | None = None
    notes: dict[str, Any] = field(default_factory=dict)


class Program:
    """Runs a list of (kind, i, j) over a growing list of values `[rows, WIDTH]`."""

    def __init__(self, steps: list[tuple[str, int, int]], device: torch.device) -> None:
        self.steps = steps
        generator = torch.Generator().manual_seed(1)
        self.weight = (torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH).to(device)
        self.kept = torch.zeros(MAX_ROWS, WIDTH, device=device)
        self.last: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> Any:
        values = [torch.tanh(x)]
        for kind, i, j in self.steps:
            a, b = values[i % len(values)], values[j % len(values)]
            made = getattr(self, kind)(a, b)
            if made is not None:
                values.append(made)
        return {"last": values[-1], "sum": sum(values[1:], start=values[0]), "nothing": None}

    # Segments.
    def matmul(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(a @ self.weight + b)

    def scale_in_place(self, a: torch.Tensor, b: torch.Tensor) -> None:
        a.mul_(0.5).add_(b.mean(1, keepdim=True))

    def half_in_place(self, a: torch.Tensor, b: torch.Tensor) -> None:
        a[:, : WIDTH // 2].copy_(torch.tanh(b[:, WIDTH // 2 :]))

    def drop_and_make(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        temporary = torch.cat([a, b], 1)
        return temporary.view(-1, 2, WIDTH).sum(1)

    # Regions.
    @eager_region
    def fresh(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(a * 2 - b)

    @eager_region
    def view(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.view(-1, WIDTH)

    @eager_region
    def write_argument(self, a: torch.Tensor, b: torch.Tensor) -> None:
        a.mul_(0.25).add_(b)

    @eager_region
    def write_kept(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.sub(a, b, out=self.kept[: a.shape[0]])

    @eager_region
    def fresh_and_keep(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        self.last = a - b * 0.5
        return self.last

    def out_buffer(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(a)
        self.into(a, b, out=out)
        return out + 0.125

    @eager_region
    def into(self, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> None:
        torch.add(a, b, alpha=0.5, out=out)

    def tuples(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        first, (second, nothing) = self.split((a, b))
        assert nothing is None
        return first - second

    @eager_region
    def split(self, pair: tuple[torch.Tensor, torch.Tensor]) -> Any:
        both = torch.cat(pair, 1)
        return both[:, :WIDTH], (both[:, WIDTH:], None)

    def dicts(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        got = self.rename({"a": a, "b": b, "n": 3})
        return got["x"] + got["y"]

    @eager_region
    def rename(self, named: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {"x": named.pop("b") * named["n"] / 4, "y": named.pop("a")}

    def dataclasses(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        parcel = self.repack(Parcel(a, b))
        parcel.left.add_(0.0625)
        return parcel.left * 1

    @eager_region
    def repack(self, parcel: Parcel) -> Parcel:
        assert parcel.right is not None
        return Parcel(parcel.right * 2 - parcel.left, None, {"seen": True})


KINDS = (
    "matmul",
    "scale_in_place",
    "half_in_place",
    "drop_and_make",
    "fresh",
    "view",
    "write_argument",
    "write_kept",
    "fresh_and_keep",
    "out_buffer",
    "tuples",
    "dicts",
    "dataclasses",
)
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=10
)
BUCKETS = st.lists(st.integers(1, MAX_ROWS), min_size=1, max_size=4, unique=True)
REPLAYS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, MAX_ROWS), st.booleans()), min_size=1, max_size=12
)


def padded_eager(program: Program, x: torch.Tensor, bucket: int) -> Any:
    padded = torch.zeros(bucket, WIDTH, device=x.device)
    padded[: x.shape[0]] = x
    with torch.no_grad():
        return program(padded)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)
@given(programs=st.tuples(STEPS, STEPS), buckets=BUCKETS, replays=REPLAYS)
def test_random_programs_equal_eager(
    kind: Any, programs: Any, buckets: list[int], replays: list[tuple[int, int, bool]]
) -> None:
    recorded = [Program(steps, kind.device) for steps in programs]
    eager = [Program(steps, kind.device) for steps in programs]
    graphs = [TokenGraph(program, recorder=kind.recorder) for program in recorded]
    for bucket in sorted(buckets, reverse=True):
        for graph in graphs:
            graph.record(kind.randn(bucket, WIDTH, seed=bucket))
    for seed, (which, rows, disturb) in enumerate(replays):
        if rows > max(buckets):
            continue
        if disturb:
            kind.disturb()
        x = kind.randn(rows, WIDTH, seed=100 + seed)
        bucket = min(b for b in buckets if b >= rows)
        want = padded_eager(eager[which], x, bucket)
        got = graphs[which].replay(x)
        assert got["nothing"] is None
        for name in ("last", "sum"):
            assert got[name].shape == (rows, WIDTH)
            if kind.taped:
                assert torch.equal(got[name], want[name][:rows])
            else:
                torch.testing.assert_close(got[name], want[name][:rows], rtol=1e-5, atol=1e-6)
    if kind.taped:
        assert not kind.pool.arena.live


@pytest.mark.parametrize("step", KINDS)
def test_each_kind_of_step_alone(kind: Any, step: str) -> None:
    steps = [("matmul", 0, 0), (step, 1, 0), ("matmul", 9, 1)]
    recorded, eager = Program(steps, kind.device), Program(steps, kind.device)
    graph = TokenGraph(recorded, recorder=kind.recorder)
    graph.record(kind.randn(4, WIDTH))
    for seed in (1, 2):
        x = kind.randn(4, WIDTH, seed=seed)
        want = padded_eager(eager, x, 4)
        got = graph.replay(x)
        assert torch.equal(got["sum"], want["sum"])
