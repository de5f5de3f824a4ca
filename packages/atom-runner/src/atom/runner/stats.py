"""What an engine did: times, tokens, and which graphs its steps replayed or why they did not."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from atom.graphs.dispatch import ForwardMode

Phase = Literal["prefill", "decode"]

_KEPT_STEPS = 4096
"""Step times kept for the median; older ones only count in the sums."""


@dataclass
class PhaseStats:
    """The steps of one phase; a step with prompt tokens in it counts as prefill, decoding sequences
    included."""

    steps: int = 0
    tokens: int = 0
    """Rows computed, padding not counted."""
    seconds: float = 0.0
    recent_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_STEPS))

    def add(self, tokens: int, seconds: float) -> None:
        self.steps += 1
        self.tokens += tokens
        self.seconds += seconds
        self.recent_seconds.append(seconds)

    def copy(self) -> PhaseStats:
        """The figures as they are now."""
        return PhaseStats(self.steps, self.tokens, self.seconds, self.recent_seconds.copy())

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def median_step_seconds(self) -> float:
        return statistics.median(self.recent_seconds) if self.recent_seconds else 0.0


@dataclass(frozen=True)
class ReplayCount:
    """How many steps of one phase ran in one way."""

    phase: Phase
    kind: str
    """`"request"` or `"token"` for a replay, `"eager"` for none."""
    reason: str
    """The bucket replayed, or why none was."""
    steps: int


@dataclass
class EngineStats:
    """A snapshot: the engine goes on, this does not change."""

    level: int
    mode: str
    load_seconds: float
    capture_seconds: float
    captured: dict[str, list[int]]
    """Recorded buckets: `"request"` in sequences, `"decode"` and `"prefill"` in rows."""
    prefill: PhaseStats
    decode: PhaseStats
    replays: list[ReplayCount]
    generated_tokens: int
    finished: dict[str, int]
    """Requests by finish reason."""
    preemptions: int
    reused_prompt_tokens: int
    kv_blocks: int
    kv_blocks_free: int
    kv_block_size: int
    kv_bytes: int
    running: int
    waiting: int

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and dicts, for JSON."""
        phases = {
            name: {
                "steps": phase.steps,
                "tokens": phase.tokens,
                "seconds": phase.seconds,
                "tokens_per_second": phase.tokens_per_second,
                "median_step_seconds": phase.median_step_seconds,
            }
            for name, phase in (("prefill", self.prefill), ("decode", self.decode))
        }
        rest = {
            key: value for key, value in vars(self).items() if key not in ("prefill", "decode", "replays")
        }
        return {**rest, **phases, "replays": [vars(replay) for replay in self.replays]}


class StepLog:
    """Counts steps as they happen."""

    def __init__(self) -> None:
        self.phases: dict[Phase, PhaseStats] = {"prefill": PhaseStats(), "decode": PhaseStats()}
        self._ran: Counter[tuple[Phase, str, str]] = Counter()

    def add(self, mode: ForwardMode, *, is_prefill: bool, tokens: int, seconds: float) -> None:
        phase: Phase = "prefill" if is_prefill else "decode"
        self.phases[phase].add(tokens, seconds)
        self._ran[phase, mode.kind, mode.reason] += 1

    def replays(self) -> list[ReplayCount]:
        """One entry for each way a step ran, most frequent first."""
        return [ReplayCount(*key, steps) for key, steps in self._ran.most_common()]

    def clear(self) -> None:
        """Start counting again, for instance after a warm-up."""
        self.__init__()  # type: ignore[misc]
