"""Fixtures that run a test once a recorder: the tape everywhere, device graphs where there is a device."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch

from atom.graphs import CUDARecorder, GraphPool, Recorder, TapeRecorder, reset_forward_context
from atom.graphs import recorder as recorder_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)
TAPE_ON_CUDA = pytest.param("tape-on-cuda", marks=CUDA.marks)


@dataclass(frozen=True)
class Kind:
    """A recorder, and where its tensors live."""

    name: str
    recorder: Recorder
    device: torch.device

    @property
    def pool(self) -> GraphPool:
        return self.recorder.pool

    @property
    def taped(self) -> bool:
        return isinstance(self.recorder, TapeRecorder)

    def randn(self, *size: int, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*size, generator=generator).to(self.device)

    def disturb(self) -> None:
        """What unrelated code may do between replays: allocate, fill, free, empty caches."""
        junk = [torch.full((n,), float("nan"), device=self.device) for n in (7, 64, 1000, 4096, 50_000)]
        del junk
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


_recorders: dict[str, Recorder] = {}


def _kind(name: str) -> Kind:
    device = torch.device("cpu" if name == "tape" else "cuda")
    if name not in _recorders:
        _recorders[name] = CUDARecorder(device) if name == "cuda" else TapeRecorder(device)
    arena = getattr(_recorders[name].pool, "arena", None)
    if arena is not None and arena.live:
        gc.collect()  # the traceback of another test's error may hold what its region made
    return Kind(name, _recorders[name], device)


@pytest.fixture(params=["tape", CUDA])
def kind(request: pytest.FixtureRequest) -> Kind:
    """The recorder of each device there is."""
    return _kind(request.param)


@pytest.fixture(params=["tape", TAPE_ON_CUDA])
def tape(request: pytest.FixtureRequest) -> Kind:
    """The tape, on each device there is."""
    return _kind(request.param)


@pytest.fixture
def kinds() -> Callable[[str], Kind]:
    """By name, for tests that choose themselves."""
    return _kind


@pytest.fixture(autouse=True)
def _nothing_left_active() -> Iterator[None]:
    reset_forward_context()
    yield
    reset_forward_context()
    assert recorder_state.active is None
    assert recorder_state.in_progress is None
