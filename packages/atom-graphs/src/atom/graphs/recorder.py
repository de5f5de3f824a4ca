"""What a recorder is, which one is active, and the life of one recording."""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

from atom.graphs.errors import NestedRecordingError, RecordingError
from atom.graphs.nccl_watchdog import drain_nccl_works

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atom.graphs.pool import GraphPool
    from atom.graphs.recording import Recording
    from atom.graphs.region import Region
    from atom.graphs.turns import Turns

T = TypeVar("T")


class Recorder(Protocol):
    """Turns one run of a forward into a `Recording`; serves one recording at a time, any number in turn."""

    @property
    def pool(self) -> GraphPool:
        """Where what it records lives."""

    def begin(self, *, breaks: bool, turns: Turns | None = None) -> None:
        """Starts the first segment; with `breaks` false a region is held inline or refused.

        Recordings of one forward that are given the same `turns` may share what replays them.
        """

    def region(self, region: Region, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Ends the segment, runs the region, starts the next; returns what the next segment is to read."""

    def opaque(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records a call whose inside must not be looked into."""

    def seal(self, result: Any) -> Any:
        """Ends the last segment; the forward's result by address, holding nothing in the pool."""

    def finish(self, name: str, result: Any) -> Recording:
        """What was recorded; `result` is what `seal` returned."""

    def abort(self) -> str:
        """Gives everything back after a failure; says at which node it happened."""


# Plain module globals: an eager region outside of any recording pays one attribute check for all this.
active: Recorder | None = None
"""The recorder that regions and opaque calls report to; None while a region runs and outside recordings."""
in_progress: str | None = None
"""Name of the recording in progress, also while one of its regions runs."""
owner_thread: int = 0


def record(
    recorder: Recorder, forward: Callable[[], Any], *, name: str, breaks: bool, turns: Turns | None = None
) -> Recording:
    """Records one run of `forward`. No warm-up: the caller runs one before, and synchronises.

    Raises:
        NestedRecordingError: a recording is in progress.
        RecordingError: it failed; says recording, node and cause. Nothing of it is left: no recorder is
            active, and pool and device can be used.
    """
    global active, in_progress, owner_thread
    if in_progress is not None:
        raise NestedRecordingError(f"recording {name} began inside the recording of {in_progress}")
    drain_nccl_works()
    started = time.perf_counter()
    active, in_progress, owner_thread = recorder, name, get_ident()
    # A collection in mid-recording may run destructors that a device capture forbids.
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.no_grad():
            recorder.begin(breaks=breaks, turns=turns)
            recording = recorder.finish(name, recorder.seal(forward()))
    except BaseException as error:
        active = None
        place = recorder.abort()
        if not isinstance(error, Exception):
            raise
        raise _placed(error, name, place) from error
    finally:
        active = in_progress = None
        if collects:
            gc.enable()
    recording.seconds = time.perf_counter() - started
    return recording


def _placed(error: Exception, name: str, place: str) -> RecordingError:
    cause = str(error) if isinstance(error, RecordingError) else f"{type(error).__name__}: {error}"
    kind = type(error) if isinstance(error, RecordingError) else RecordingError
    return kind(f"recording {name} failed in {place}: {cause}")


@contextmanager
def suspended() -> Iterator[None]:
    """While a region runs: what it calls belongs to no recording, though one is in progress."""
    global active
    before, active = active, None
    try:
        yield
    finally:
        active = before


def recording_here() -> Recorder | None:
    """The active recorder, if this thread is the one recording."""
    return active if active is not None and owner_thread == get_ident() else None


_defaults: dict[torch.device, Recorder] = {}


def default_recorder(device: torch.device | str) -> Recorder:
    """The recorder for a device: device graphs on CUDA and HIP, the tape anywhere else."""
    from atom.graphs.cuda_recorder import CUDARecorder
    from atom.graphs.pool import with_index
    from atom.graphs.tape_recorder import TapeRecorder

    device = with_index(torch.device(device))
    if device not in _defaults:
        _defaults[device] = CUDARecorder(device) if device.type == "cuda" else TapeRecorder(device)
    return _defaults[device]
