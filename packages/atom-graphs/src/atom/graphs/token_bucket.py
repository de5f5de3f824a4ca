"""Token graphs: one recording a token count, broken at eager regions."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from atom.graphs import recorder as recording_state
from atom.graphs.address import alias
from atom.graphs.errors import BucketError, NestedRecordingError, ReplayInputError
from atom.graphs.recorder import default_recorder, record
from atom.graphs.report import Introspection, compare, fresh_inputs
from atom.graphs.structure import map_tensors
from atom.graphs.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom.graphs.recorder import Recorder
    from atom.graphs.recording import Recording
    from atom.graphs.report import Verification

Phase = Literal["prefill", "decode"]
PHASES: tuple[Phase, Phase] = ("prefill", "decode")


class Slot(NamedTuple):
    """An input tensor's place."""

    recorded: torch.Tensor
    address: int
    numel: int
    dtype: torch.dtype
    contiguous: bool
    memory: torch.Tensor
    """What the recording reads, whatever becomes of `recorded`; written in and outside of inference mode."""


@dataclass(frozen=True)
class Bucket:
    """A recording of `rows` rows and the inputs it reads."""

    rows: int
    recording: Recording
    inputs: tuple[Any, ...]
    """As given when it was recorded: those very tensors are read by each replay."""
    slots: tuple[Slot | None, ...]
    """One an input; None for an input that is no tensor."""
    replay: Callable[[], Any]
    """The recording's own."""

    @classmethod
    def of(cls, rows: int, recording: Recording, inputs: tuple[Any, ...]) -> Bucket:
        slots = tuple(
            Slot(given, given.data_ptr(), given.numel(), given.dtype, given.is_contiguous(), alias(given))
            if isinstance(given, torch.Tensor)
            else None
            for given in inputs
        )
        return cls(rows, recording, inputs, slots, recording.replay)

    def reads(self, inputs: tuple[Any, ...]) -> bool:
        """Whether these inputs are the memory that was recorded: the common replay asks no more."""
        if len(inputs) != len(self.slots):
            return False
        for given, slot in zip(inputs, self.slots, strict=True):
            if slot is None:
                return False
            recorded, address, numel, dtype, contiguous, _ = slot
            if given.data_ptr() != address:
                return False
            if given is not recorded and not (
                # As many contiguous elements from the same address on are the same memory.
                contiguous and given.is_contiguous() and given.numel() == numel and given.dtype is dtype
            ):
                return False
        return True

    def load(self, inputs: tuple[Any, ...], rows: int) -> None:
        """Copies inputs of `rows` rows to where the recording reads them; rows past them become zero.

        An input that lies there already is not copied.

        Raises:
            ReplayInputError: an input differs from the recorded one in more than its rows.
        """
        self._check(inputs, rows)
        with torch.no_grad():
            for given, slot in zip(inputs, self.slots, strict=True):
                if slot is None:
                    continue
                if given.data_ptr() != slot.address or given.stride() != slot.memory.stride():
                    slot.memory[:rows].copy_(given)
                if rows < self.rows:
                    slot.memory[rows:].zero_()

    def trimmed(self, rows: int) -> Any:
        """The recorded result, cut to `rows` wherever it has the bucket's rows."""
        if rows == self.rows:
            return self.recording.result
        return map_tensors(
            self.recording.result, lambda t: t[:rows] if t.dim() and t.shape[0] == self.rows else t
        )

    def _check(self, inputs: tuple[Any, ...], rows: int) -> None:
        if len(inputs) != len(self.inputs):
            raise ReplayInputError(f"{len(inputs)} inputs where bucket {self.rows} has {len(self.inputs)}")
        for at, (given, recorded) in enumerate(zip(inputs, self.inputs, strict=True)):
            if isinstance(recorded, torch.Tensor):
                expected = (rows, *recorded.shape[1:])
                if (
                    not isinstance(given, torch.Tensor)
                    or given.dtype != recorded.dtype
                    or given.shape != expected
                ):
                    raise ReplayInputError(
                        f"input {at} is {_described(given)} where bucket {self.rows} takes {recorded.dtype} "
                        f"{list(expected)}"
                    )
            elif given is not recorded and given != recorded:
                raise ReplayInputError(
                    f"input {at} is {given!r}, but bucket {self.rows} was recorded with {recorded!r}; only "
                    "tensors "
                    "may change between replays"
                )


class TokenGraph(Introspection):
    """Recordings of one forward by its number of rows, broken at eager regions, all in `graph_pool()`.

    Args:
        forward: Takes inputs `[rows, ...]` and returns tensors, tuples, lists, dicts or dataclasses of them.
        per_phase: The forward records different work in prefill and decode, so each phase has its recordings;
            otherwise one recording of a row count serves both.
        recorder: Default: device graphs for inputs on CUDA or HIP, the tape for any other.
    """

    def __init__(
        self, forward: Callable[..., Any], *, per_phase: bool = False, recorder: Recorder | None = None
    ) -> None:
        self.forward = forward
        self.per_phase = per_phase
        self._recorder = recorder
        self._turns = Turns()
        self._exact: dict[Phase, dict[int, Bucket]] = {phase: {} for phase in PHASES}
        self._sizes: dict[Phase, list[int]] = {phase: [] for phase in PHASES}

    @torch.no_grad()
    def record(self, *inputs: Any, phase: Phase = "decode") -> Any:
        """Records the forward at `inputs[0].shape[0]` rows and returns its result.

        The recording reads these very tensors at each replay. It runs the forward once; a warm-up before it,
        and synchronising after that, are the caller's. A row count the other phase has recorded is not
        recorded again: it only counts for this phase too, from now on.

        Raises:
            NestedRecordingError: a recording is in progress.
            RecordingError: it failed, and left nothing.
            ReplayInputError: the first input is no tensor `[rows, ...]`.
        """
        rows = _rows(inputs)
        bucket = self._recorded(rows, phase)
        if bucket is None:
            recorder = self._recorder_for(inputs)
            name = f"token bucket {rows} ({phase})" if self.per_phase else f"token bucket {rows}"
            recording = record(
                recorder, lambda: self.forward(*inputs), name=name, breaks=True, turns=self._turns
            )
            bucket = Bucket.of(rows, recording, inputs)
            self._count(bucket, phase)
            return recording.result
        self._count(bucket, phase)
        return self.replay(*inputs, phase=phase)

    def replay(self, *inputs: Any, phase: Phase = "decode") -> Any:
        """Runs the smallest bucket of this phase that holds the inputs' rows, and returns the live rows.

        Inputs are copied to where the recording reads them unless they lie there, and padded with zeros. The
        result is valid until the next replay in the pool.

        Raises:
            BucketError: no bucket of this phase holds that many rows.
            ReplayInputError: an input differs from the recorded one in more than its rows.
        """
        if recording_state.in_progress is not None:
            raise _while_recording()
        hit = None
        try:
            rows = inputs[0].size(0)
            bucket = self._exact[phase].get(rows)
            if bucket is not None and bucket.reads(inputs):
                hit = bucket.replay
        except (AttributeError, IndexError, TypeError):
            rows = _rows(inputs)  # says what is wrong; the full check below does if this was not it
        if hit is not None:
            return hit()
        bucket = self._holding(rows, phase)
        bucket.load(inputs, rows)
        bucket.recording.replay()
        return bucket.trimmed(rows)

    def captured_sizes(self, phase: Phase = "decode") -> list[int]:
        """The buckets a step of that phase pads to, ascending: those that phase has asked for."""
        return list(self._sizes[phase])

    def bucket(self, rows: int, phase: Phase = "decode") -> Bucket:
        """The bucket recorded at exactly `rows`.

        Raises:
            BucketError: there is none.
        """
        found = self._exact[phase].get(rows)
        if found is None:
            raise BucketError(f"no {phase} bucket of {rows} rows; recorded: {self.captured_sizes(phase)}")
        return found

    def verify(self, rows: int, *inputs: Any, phase: Phase = "decode", seed: int = 0) -> Verification:
        """Replays a bucket on fresh inputs (or the given ones), then runs eagerly on them, and compares.

        What the recording froze and eager computes anew, such as a random number drawn by Python, shows
        here. A forward that changes state runs twice.

        Raises:
            BucketError: nothing was recorded at `rows`.
        """
        bucket = self.bucket(rows, phase)
        given = inputs or fresh_inputs(bucket.inputs, seed)
        return compare(
            bucket.recording.name, lambda: self.replay(*given, phase=phase), lambda: self.forward(*given)
        )

    def recordings(self) -> dict[str, Recording]:
        """Every recording once, by name, smallest first."""
        found = {b.recording.name: b for phase in PHASES for b in self._exact[phase].values()}
        return {b.recording.name: b.recording for b in sorted(found.values(), key=lambda b: b.rows)}

    @property
    def bucket_fixed(self) -> bool:
        """Whether request graphs may be recorded beside: every region seen is declared bucket-fixed."""
        return all(recording.bucket_fixed for recording in self.recordings().values())

    def _recorder_for(self, inputs: tuple[Any, ...]) -> Recorder:
        return self._recorder or default_recorder(inputs[0].device)

    def _recorded(self, rows: int, phase: Phase) -> Bucket | None:
        phases = (phase,) if self.per_phase else PHASES
        return next((self._exact[p][rows] for p in phases if rows in self._exact[p]), None)

    def _count(self, bucket: Bucket, phase: Phase) -> None:
        if bucket.rows not in self._exact[phase]:
            self._exact[phase][bucket.rows] = bucket
            insort(self._sizes[phase], bucket.rows)

    def _holding(self, rows: int, phase: Phase) -> Bucket:
        sizes = self._sizes[phase]
        at = bisect_left(sizes, rows)
        if at == len(sizes):
            raise BucketError(f"no {phase} bucket holds {rows} rows; recorded: {sizes}")
        return self._exact[phase][sizes[at]]


def _rows(inputs: tuple[Any, ...]) -> int:
    if not inputs or not isinstance(inputs[0], torch.Tensor) or not inputs[0].dim():
        given = _described(inputs[0]) if inputs else "missing"
        raise ReplayInputError(
            f"input 0 must be a tensor [rows, ...] that gives the number of rows; it is {given}"
        )
    return int(inputs[0].shape[0])


def _described(given: object) -> str:
    return f"{given.dtype} {list(given.shape)}" if isinstance(given, torch.Tensor) else repr(given)


def _while_recording() -> NestedRecordingError:
    return NestedRecordingError(
        f"a replay inside the recording of {recording_state.in_progress}: they would share memory"
    )
