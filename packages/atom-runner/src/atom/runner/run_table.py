"""The table at the end of a run: what was loaded, how fast it went, and which graphs its steps replayed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.table import Table

from atom.config import CompilationLevel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom.runner.stats import EngineStats, PhaseStats


def run_table(stats: EngineStats, *, model: str | None = None) -> Table:
    """A two-column table of `stats`; `model` says in words what was run."""
    table = Table(box=SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in run_lines(stats, model=model):
        table.add_row(name, value)
    return table


def run_lines(stats: EngineStats, *, model: str | None = None) -> list[tuple[str, str]]:
    """The table's rows as plain text."""
    level = CompilationLevel(stats.level)
    lines = [] if model is None else [("model", model)]
    lines.append(("load", f"{stats.load_seconds:.2f} s"))
    if stats.captured:
        lines.append(("graph capture", f"{stats.capture_seconds:.2f} s: {_buckets(stats.captured)}"))
    lines += [
        ("prefill", _rate(stats.prefill)),
        ("decode", _rate(stats.decode)),
        ("step time", _step_times(stats.decode if stats.decode.steps else stats.prefill)),
        ("level", f"{level.value} {level.name}"),
        ("graph mode", stats.mode),
        *_replay_lines(stats),
        ("KV cache", _cache(stats)),
    ]
    return lines


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all `values` do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _rate(phase: PhaseStats) -> str:
    if not phase.steps:
        return "none"
    return (
        f"{phase.tokens_per_second:,.1f} tokens/s ({_count(phase.tokens, 'token')} in "
        f"{_count(phase.steps, 'step')}, {phase.seconds:.2f} s)"
    )


def _step_times(phase: PhaseStats) -> str:
    if not phase.recent_seconds:
        return "none"
    median = phase.median_step_seconds * 1e3
    return f"median {median:.2f} ms, p99 {percentile(phase.recent_seconds, 0.99) * 1e3:.2f} ms"


def _replay_lines(stats: EngineStats) -> list[tuple[str, str]]:
    total = sum(replay.steps for replay in stats.replays)
    replayed = sum(replay.steps for replay in stats.replays if replay.kind != "eager")
    lines = [("replayed", f"{replayed} of {_count(total, 'step')}")]
    for replay in stats.replays:
        what = "without a graph" if replay.kind == "eager" else f"{replay.kind} graph"
        lines.append(("", f"{replay.steps} {replay.phase}: {what} ({replay.reason})"))
    return lines


def _cache(stats: EngineStats) -> str:
    text = (
        f"{stats.kv_blocks} blocks of {stats.kv_block_size} tokens, {stats.kv_bytes / 2**20:,.1f} MiB; "
        f"{_count(stats.reused_prompt_tokens, 'prompt token')} reused"
    )
    return f"{text}; {_count(stats.preemptions, 'preemption')}" if stats.preemptions else text


def _buckets(captured: dict[str, list[int]]) -> str:
    return "; ".join(f"{kind} {_short(sizes)}" for kind, sizes in captured.items() if sizes) or "no bucket"


def _short(sizes: list[int]) -> str:
    if len(sizes) <= 8:
        return ", ".join(map(str, sizes))
    return f"{', '.join(map(str, sizes[:4]))}, ..., {sizes[-1]} ({len(sizes)} buckets)"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
