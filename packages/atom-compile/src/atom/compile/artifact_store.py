"""Compiled artifacts on disk, found by what they were compiled from.

An artifact is a folder `artifacts/<first two digits>/<digest>/` with a manifest that lists every file's size
and SHA-256. It is filled under another name and appears by rename. Whoever loads one gets a verified
private copy, so that nothing in the shared folder is ever written in place, depended on later, or trusted
unread.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from atom.compile.atomic_files import file_digest, process_lock, remove_tree, unique_name
from atom.compile.errors import ArtifactError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from atom.compile.size_guards import Condition

__all__ = ["ARTIFACTS", "LOCKS", "STAGING", "ArtifactStore", "Manifest"]

ARTIFACTS, STAGING, LOCKS = "artifacts", "staging", "locks"
MANIFEST = "manifest.json"
_STALE_STAGING_S = 3600.0
_LOCK_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Manifest:
    """What an artifact is and which bytes belong to it."""

    digest: str
    compiler: str
    conditions: list[Condition] = field(default_factory=list)
    """Sizes for which the code is valid, in the canonical names of the piece's symbols."""
    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Relative path -> bytes and SHA-256."""
    created_s: float = 0.0

    @property
    def nbytes(self) -> int:
        return sum(size for size, _ in self.files.values())

    def to_text(self) -> str:
        body = json.dumps(asdict(self), sort_keys=True)
        return f"{hashlib.sha256(body.encode()).hexdigest()}\n{body}\n"

    @classmethod
    def from_text(cls, text: str) -> Manifest:
        """The inverse of `to_text`.

        Raises:
            ValueError: the text is cut, changed, or something else.
        """
        checksum, _, body = text.partition("\n")
        body = body.removesuffix("\n")
        if hashlib.sha256(body.encode()).hexdigest() != checksum:
            raise ValueError("the manifest does not match its checksum")
        raw = json.loads(body)
        files = {name: (int(size), str(digest)) for name, (size, digest) in raw["files"].items()}
        return cls(raw["digest"], raw["compiler"], raw["conditions"], files, raw["created_s"])


class ArtifactStore:
    """The artifacts below one cache root, shared by every run, rank and process that uses the root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path_of(self, digest: str) -> Path:
        return self.root / ARTIFACTS / digest[:2] / digest

    def lock(self, digest: str) -> AbstractContextManager[bool]:
        """While held, other processes that want this artifact wait instead of compiling it too."""
        return process_lock(self.root / LOCKS / f"{digest}.lock", patience_s=_LOCK_PATIENCE_S)

    def contains(self, digest: str) -> bool:
        return (self.path_of(digest) / MANIFEST).is_file()

    def manifest(self, digest: str) -> Manifest:
        """Read and check an artifact's manifest (not its files).

        Raises:
            ArtifactError: there is none, or it is unreadable, cut or foreign.
        """
        path = self.path_of(digest) / MANIFEST
        try:
            manifest = Manifest.from_text(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"{path}: {error}") from error
        if manifest.digest != digest:
            raise ArtifactError(f"{path}: belongs to {manifest.digest}")
        return manifest

    def verify(self, digest: str) -> Manifest:
        """Check an artifact's manifest and every file that it lists.

        Raises:
            ArtifactError: names the first file that is missing, cut or changed.
        """
        manifest = self.manifest(digest)
        _require_files(self.path_of(digest), manifest)
        return manifest

    def fetch(self, digest: str, destination: Path) -> Manifest:
        """Copy an artifact's files to `destination` (which must not exist) and check the copy.

        Raises:
            ArtifactError: the artifact is missing, unreadable or damaged; nothing is left behind.
        """
        manifest = self.manifest(digest)
        source = self.path_of(digest)
        try:
            for name in manifest.files:
                target = destination / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / name, target)
            _require_files(destination, manifest)
        except OSError as error:
            shutil.rmtree(destination, ignore_errors=True)
            raise ArtifactError(f"{source}: {error}") from error
        except ArtifactError:
            shutil.rmtree(destination, ignore_errors=True)
            raise
        return manifest

    def publish(self, digest: str, folder: Path, *, compiler: str, conditions: list[Condition]) -> bool:
        """Make a copy of `folder` the artifact `digest`, unless there is one.

        Returns:
            Whether this call made it appear.

        Raises:
            OSError: the root cannot be written, or is full. Nothing half-written is left under a name that
                anyone looks at.
        """
        staging = self.root / STAGING / unique_name()
        final = self.path_of(digest)
        try:
            staging.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(folder, staging)
            manifest = Manifest(digest, compiler, conditions, _listing(staging), time.time())
            (staging / MANIFEST).write_text(manifest.to_text(), encoding="utf-8")
            return _rename_into(staging, final)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def discard(self, digest: str) -> None:
        """Take a damaged artifact away; done when it cannot be."""
        remove_tree(self.path_of(digest))

    def sweep_staging(self, *, older_than_s: float = _STALE_STAGING_S) -> int:
        """Remove what processes that were killed while writing have left; returns how many folders."""
        removed = 0
        with contextlib.suppress(OSError):
            for folder in (self.root / STAGING).iterdir():
                with contextlib.suppress(OSError):
                    if time.time() - folder.stat().st_mtime >= older_than_s:
                        shutil.rmtree(folder, ignore_errors=True)
                        removed += 1
        return removed


def _rename_into(staging: Path, final: Path) -> bool:
    for _ in range(3):
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            staging.rename(final)
        except FileNotFoundError:  # the whole cache was cleared between the two steps
            if not staging.is_dir():
                raise
        except OSError:
            if final.is_dir():  # another process was first; its artifact was made from the same things
                return False
            raise
        else:
            return True
    raise FileNotFoundError(f"{final.parent} is removed as fast as it is made")


def _listing(folder: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_size, file_digest(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _require_files(folder: Path, manifest: Manifest) -> None:
    for name, (size, digest) in manifest.files.items():
        path = folder / name
        if ".." in path.parts or not path.is_relative_to(folder):
            raise ArtifactError(f"{folder}: the manifest names {name!r}, which lies outside")
        try:
            intact = path.stat().st_size == size and file_digest(path) == digest
        except OSError as error:
            raise ArtifactError(f"{path}: {error}") from error
        if not intact:
            raise ArtifactError(f"{path}: cut or changed since it was written")
