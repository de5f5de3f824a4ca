"""What was recorded, and whether it still does what eager does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from atom.graphs.recording import Segment
from atom.graphs.structure import map_tensors, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from atom.graphs.recording import Node, Recording

_ROW = "{:<32} {:>8} {:>7} {:>8} {:>12} {:>11}"


@dataclass(frozen=True)
class RecordingReport:
    """One recording in numbers."""

    name: str
    segments: int
    regions: tuple[str, ...]
    """Names of the regions it breaks at, in order."""
    inlined: tuple[str, ...]
    """Names of the bucket-fixed regions it holds without a break."""
    work: tuple[int | None, ...]
    """Taped ops, or device-graph nodes, of each segment."""
    unit: str
    """`"ops"` or `"nodes"`."""
    bridge_bytes: int
    """Bytes each replay copies across its breaks."""
    record_seconds: float


@dataclass(frozen=True)
class GraphReport:
    """Every recording of a graph, and the pool they share with all others on the device."""

    recordings: tuple[RecordingReport, ...]
    pool_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [_ROW.format("recording", "segments", "regions", "work", "bridge bytes", "recorded in")]
        for r in self.recordings:
            work = "?" if None in r.work else str(sum(w for w in r.work if w is not None))
            took = f"{r.record_seconds * 1e3:.1f} ms"
            lines.append(_ROW.format(r.name, r.segments, len(r.regions), work, r.bridge_bytes, took))
        lines.append(f"pool: {self.pool_bytes} bytes")
        return "\n".join(lines)


@dataclass(frozen=True)
class OutputDifference:
    """One tensor of a result, replayed against eager."""

    position: int
    shape: tuple[int, ...]
    worst: float
    """Largest absolute difference; infinite where only one of the two is NaN."""


@dataclass(frozen=True)
class Verification:
    """A bucket replayed against eager."""

    name: str
    outputs: tuple[OutputDifference, ...]

    @property
    def worst(self) -> float:
        return max((o.worst for o in self.outputs), default=0.0)

    @property
    def equal(self) -> bool:
        """Whether every output agrees to the last bit."""
        return self.worst == 0.0


class Introspection(ABC):
    """`describe` and `to_dot` for whatever has recordings."""

    @abstractmethod
    def recordings(self) -> dict[str, Recording]:
        """Every recording, by name."""

    def describe(self) -> GraphReport:
        """Segments, regions, work, bridge bytes and record time of each recording, and the pool's bytes."""
        recordings = list(self.recordings().values())
        return GraphReport(
            tuple(_describe(r) for r in recordings), recordings[0].pool.nbytes() if recordings else 0
        )

    def to_dot(self) -> str:
        """The recordings as a Graphviz digraph, a cluster each."""
        lines = ["digraph recordings {", "  rankdir=LR;"]
        for at, recording in enumerate(self.recordings().values()):
            lines += [f"  subgraph cluster_{at} {{", f"    label={_quoted(recording.name)};"]
            names = [f"r{at}n{i}" for i in range(len(recording.nodes))]
            lines += [f"    {n} {_dot_style(node)};" for n, node in zip(names, recording.nodes, strict=True)]
            lines += [f"    {a} -> {b};" for a, b in pairwise(names)]
            lines.append("  }")
        return "\n".join([*lines, "}"])


def compare(name: str, replay: Callable[[], Any], eager: Callable[[], Any]) -> Verification:
    """Runs both, replay first, and gives the worst difference of each output."""
    with torch.no_grad():
        replayed = map_tensors(replay(), torch.clone)
        expected = eager()
    pairs = zip(tensors_in(replayed), tensors_in(expected), strict=True)
    return Verification(
        name,
        tuple(OutputDifference(i, tuple(b.shape), _worst(a, b)) for i, (a, b) in enumerate(pairs)),
    )


def fresh_inputs(recorded: Iterable[Any], seed: int) -> tuple[Any, ...]:
    """Inputs of the recorded shapes: normal numbers for floats; ids are the recorded rows, reordered."""
    generator = torch.Generator().manual_seed(seed)

    def fresh(t: torch.Tensor) -> torch.Tensor:
        if t.is_floating_point():
            return torch.randn(t.shape, generator=generator).to(t)
        if not t.dim():
            return t.clone()
        return t[torch.randperm(t.shape[0], generator=generator).to(t.device)]

    with torch.no_grad():
        return tuple(fresh(i) if isinstance(i, torch.Tensor) else i for i in recorded)


def _describe(recording: Recording) -> RecordingReport:
    return RecordingReport(
        name=recording.name,
        segments=len(recording.segments),
        regions=tuple(r.name for r in recording.regions),
        inlined=recording.inlined,
        work=tuple(s.work for s in recording.segments),
        unit=recording.segments[0].unit if recording.segments else "ops",
        bridge_bytes=sum(r.bridge_bytes for r in recording.regions),
        record_seconds=recording.seconds,
    )


def _worst(replayed: torch.Tensor, eager: torch.Tensor) -> float:
    if replayed.shape != eager.shape:
        return float("inf")
    if not eager.numel() or torch.equal(replayed, eager):
        return 0.0
    a, b = replayed.double(), eager.double()
    difference = torch.where(a.isnan() & b.isnan() | (a == b), 0.0, (a - b).abs())
    return float(difference.nan_to_num(nan=float("inf")).max())


def _dot_style(node: Node) -> str:
    if isinstance(node, Segment):
        work = "" if node.work is None else f"\\n{node.work} {node.unit}"
        return f'[shape=box, label="segment{work}"]'
    label = _quoted(f"{node.name}\n{node.bridge_bytes} B across")
    return f"[shape=ellipse, label={label}]"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
