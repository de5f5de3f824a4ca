"""Recordings with fixed buffers, by a key that names their bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from atom.graphs import recorder as recording_state
from atom.graphs.errors import BucketError, NestedRecordingError
from atom.graphs.forward_context import get_forward_context
from atom.graphs.recorder import default_recorder, record
from atom.graphs.report import Introspection, compare
from atom.graphs.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom.graphs.recorder import Recorder
    from atom.graphs.recording import Recording
    from atom.graphs.report import Verification

K = TypeVar("K")


class KeyedGraph(Introspection, Generic[K]):
    """A dict of recordings; nothing is copied in or out: a forward reads and writes its owner's buffers."""

    _kind = "bucket"

    def __init__(self, *, breaks: bool, recorder: Recorder | None = None) -> None:
        self._breaks = breaks
        self._turns = Turns() if breaks else None
        self._recorder = recorder
        self._recordings: dict[K, Recording] = {}
        self._replays: dict[K, Callable[[], Any]] = {}
        self._forwards: dict[K, Callable[[], Any]] = {}

    def recordings(self) -> dict[str, Recording]:
        """Every recording, by name."""
        return {recording.name: recording for recording in self._recordings.values()}

    def _verify(self, key: K) -> Verification:
        return compare(f"{self._kind} {key}", lambda: self._replay(key), self._forwards[key])

    def _record(self, key: K, forward: Callable[[], Any]) -> Any:
        recording = record(
            self._recorder or default_recorder(_device()),
            forward,
            name=f"{self._kind} {key}",
            breaks=self._breaks,
            turns=self._turns,
        )
        self._recordings[key] = recording
        self._replays[key] = recording.replay
        self._forwards[key] = forward
        return recording.result

    def _replay(self, key: K) -> Any:
        if recording_state.in_progress is not None:
            raise NestedRecordingError(
                f"a replay inside the recording of {recording_state.in_progress}: they would share memory"
            )
        try:
            replay = self._replays[key]
        except KeyError:
            known = ", ".join(str(k) for k in self._replays) or "none"
            raise BucketError(f"no {self._kind} {key}; recorded: {known}") from None
        return replay()


def _device() -> torch.device:
    """Where the step runs: the context's positions tell, else the CUDA device there is."""
    context = get_forward_context().context
    if context is not None:
        return context.positions.device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
