"""Look at, check and clear a compile cache; what `atom-runner cache` calls."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from atom.compile.artifact_store import ARTIFACTS, LOCKS, STAGING, ArtifactStore
from atom.compile.atomic_files import remove_tree
from atom.compile.cache_index import INDEX_NAME, read_index
from atom.compile.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "CacheArtifact",
    "CacheProblem",
    "CacheReport",
    "CacheRun",
    "check_cache",
    "clear_cache",
    "list_cache",
]

_RUN_NAME = re.compile(r"[0-9a-f]{32}")
_ARTIFACT_NAME = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class CacheRun:
    """The index of one model part in one run folder: `<run>/rank_<rank>/<prefix>/`."""

    run: str
    rank: int
    prefix: str
    path: Path
    pieces: int
    """Entries of the index."""
    artifacts: frozenset[str]
    """Distinct artifacts that they lead to."""
    modified_s: float


@dataclass(frozen=True)
class CacheArtifact:
    """One compiled artifact."""

    digest: str
    compiler: str
    nbytes: int
    created_s: float
    used_by: int
    """Index entries that lead to it."""


@dataclass(frozen=True)
class CacheProblem:
    """Something in the cache that would be recompiled instead of used."""

    path: Path
    what: str


@dataclass(frozen=True)
class CacheReport:
    """What a cache root holds."""

    root: Path
    runs: list[CacheRun] = field(default_factory=list)
    artifacts: list[CacheArtifact] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(artifact.nbytes for artifact in self.artifacts)


def list_cache(root: Path) -> CacheReport:
    """The runs and artifacts below a cache root, newest first, without damaged ones (see `check_cache`)."""
    store = ArtifactStore(root)
    runs = sorted(_runs(root), key=lambda run: -run.modified_s)
    used: dict[str, int] = {}
    for run in runs:
        for digest in read_index(run.path / INDEX_NAME).values():
            used[digest] = used.get(digest, 0) + 1
    artifacts = []
    for digest in _artifact_names(root):
        with contextlib.suppress(ArtifactError):
            manifest = store.manifest(digest)
            artifacts.append(
                CacheArtifact(
                    digest, manifest.compiler, manifest.nbytes, manifest.created_s, used.get(digest, 0)
                )
            )
    return CacheReport(root, runs, sorted(artifacts, key=lambda artifact: -artifact.created_s))


def check_cache(root: Path, *, repair: bool = False) -> list[CacheProblem]:
    """Read every index and every byte of every artifact below `root`.

    Args:
        repair: also remove what is damaged, and what killed processes left half-written.
    """
    store = ArtifactStore(root)
    problems = []
    for path in sorted(_index_files(root)):
        if not read_index(path) and path.is_file():
            problems.append(CacheProblem(path, "index cannot be read"))
            if repair:
                path.unlink(missing_ok=True)
    for digest in sorted(_artifact_names(root)):
        try:
            store.verify(digest)
        except ArtifactError as error:
            problems.append(CacheProblem(store.path_of(digest), str(error)))
            if repair:
                store.discard(digest)
    if repair:
        store.sweep_staging()
    return problems


def clear_cache(root: Path) -> int:
    """Remove everything that a compile cache keeps below `root`, and nothing else; returns bytes freed.

    Safe while other processes use the cache: they recompile what they miss.
    """
    freed = 0
    for name in [ARTIFACTS, STAGING, LOCKS, *_run_names(root)]:
        folder = root / name
        freed += _bytes_below(folder)
        remove_tree(folder)
        for leftover in root.glob(f".{name}.*-*"):  # of a clear that was killed
            shutil.rmtree(leftover, ignore_errors=True)
    return freed


def _runs(root: Path) -> Iterator[CacheRun]:
    for path in _index_files(root):
        run, rank, *prefix = path.relative_to(root).parts[:-1]
        number = rank.removeprefix("rank_")
        if not number.isdecimal():
            continue
        entries = read_index(path)
        with contextlib.suppress(OSError):
            yield CacheRun(
                run=run,
                rank=int(number),
                prefix="/".join(prefix),
                path=path.parent,
                pieces=len(entries),
                artifacts=frozenset(entries.values()),
                modified_s=path.stat().st_mtime,
            )


def _artifact_names(root: Path) -> Iterator[str]:
    for folder, names, _ in os.walk(root / ARTIFACTS):
        if len(Path(folder).name) == 2:
            yield from (name for name in names if _ARTIFACT_NAME.fullmatch(name))
            names.clear()


def _run_names(root: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [path.name for path in root.iterdir() if _RUN_NAME.fullmatch(path.name)]
    return []


def _index_files(root: Path) -> Iterator[Path]:
    for run in _run_names(root):
        for path in _files_below(root / run):
            if path.name == INDEX_NAME and path.relative_to(root).parts[1].startswith("rank_"):
                yield path


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in _files_below(folder):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def _files_below(folder: Path) -> Iterator[Path]:
    """Files below `folder`, which other processes may fill and empty meanwhile: a glob would raise then."""
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)
