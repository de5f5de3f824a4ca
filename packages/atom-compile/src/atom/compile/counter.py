"""Counts what compilation did in this process."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CompilationCounter", "compilation_counter"]


@dataclass
class CompilationCounter:
    """How often each thing happened in this process; `compilation_counter` is the one in use."""

    num_traces: int = 0
    """Forwards traced by Dynamo."""
    num_graphs_split: int = 0
    """Traced graphs that were cut into pieces."""
    num_pieces: int = 0
    """Pieces that needed a compiled callable, equal ones counted each time."""
    num_backend_compilations: int = 0
    """Pieces that the compiler compiled."""
    num_cache_hits: int = 0
    """Pieces that were read from the cache on disk."""
    num_process_hits: int = 0
    """Pieces served by what this process had compiled or read before."""
    num_artifacts_rejected: int = 0
    """Artifacts on disk that were damaged, foreign or not valid for the sizes at hand."""
    num_artifacts_published: int = 0
    """Artifacts that this process added to the cache on disk."""

    def reset(self) -> None:
        for item in fields(self):
            setattr(self, item.name, 0)

    @contextlib.contextmanager
    def counted(self) -> Iterator[CompilationCounter]:
        """Yields a counter that, once the body is through, holds what happened in it."""
        before = asdict(self)
        inside = CompilationCounter()
        try:
            yield inside
        finally:
            for name, value in asdict(self).items():
                setattr(inside, name, value - before[name])


compilation_counter = CompilationCounter()
