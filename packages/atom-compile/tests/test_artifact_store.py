"""Artifacts on disk: whole or not at all, verified before use."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from atom.compile import ArtifactError
from atom.compile.artifact_store import MANIFEST, ArtifactStore, Manifest

if TYPE_CHECKING:
    from pathlib import Path

DIGEST = "ab" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    (made / "inner").mkdir(parents=True)
    (made / "inner" / "kernel").write_bytes(bytes(range(256)) * 8)
    (made / "code").write_text("print('never run')")
    return made


@pytest.fixture
def store(tmp_path: Path, folder: Path) -> ArtifactStore:
    made = ArtifactStore(tmp_path / "root")
    assert made.publish(DIGEST, folder, compiler="test", conditions=[("LessThan", "s0", 64)])
    return made


def test_what_is_fetched_is_what_was_published(store: ArtifactStore, folder: Path, tmp_path: Path) -> None:
    manifest = store.fetch(DIGEST, tmp_path / "copy")
    assert (tmp_path / "copy" / "inner" / "kernel").read_bytes() == (folder / "inner" / "kernel").read_bytes()
    assert manifest.conditions == [["LessThan", "s0", 64]]
    assert manifest.nbytes == 256 * 8 + len("print('never run')")
    assert not (store.root / "staging").exists() or not list((store.root / "staging").iterdir())


def test_the_first_to_publish_wins(store: ArtifactStore, folder: Path) -> None:
    before = store.manifest(DIGEST).created_s
    assert not store.publish(DIGEST, folder, compiler="test", conditions=[])
    assert store.manifest(DIGEST).created_s == before


def test_every_truncated_or_flipped_file_is_refused(store: ArtifactStore, tmp_path: Path) -> None:
    generator = random.Random(0)
    files = [path for path in store.path_of(DIGEST).rglob("*") if path.is_file()]
    assert len(files) == 3
    for number in range(60):
        path = generator.choice(files)
        original = path.read_bytes()
        if number % 2:
            damaged = bytearray(original)
            damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
            path.write_bytes(damaged)
        else:
            path.write_bytes(original[: generator.randrange(len(original))])
        with pytest.raises(ArtifactError):
            store.fetch(DIGEST, tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
        path.write_bytes(original)
    store.fetch(DIGEST, tmp_path / "copy")


def test_a_missing_file_is_refused_by_name(store: ArtifactStore, tmp_path: Path) -> None:
    (store.path_of(DIGEST) / "code").unlink()
    with pytest.raises(ArtifactError, match="code"):
        store.fetch(DIGEST, tmp_path / "copy")
    with pytest.raises(ArtifactError, match="code"):
        store.verify(DIGEST)


def test_an_artifact_under_another_name_is_refused(store: ArtifactStore) -> None:
    other = "cd" * 32
    store.path_of(other).parent.mkdir(parents=True)
    store.path_of(DIGEST).rename(store.path_of(other))
    with pytest.raises(ArtifactError, match=DIGEST):
        store.manifest(other)


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname"])
def test_a_manifest_cannot_name_files_outside(store: ArtifactStore, tmp_path: Path, name: str) -> None:
    manifest = Manifest(DIGEST, "test", files={name: (1, "00")})
    (store.path_of(DIGEST) / MANIFEST).write_text(manifest.to_text())
    with pytest.raises(ArtifactError):
        store.verify(DIGEST)
    with pytest.raises(ArtifactError):
        store.fetch(DIGEST, tmp_path / "copy")


@pytest.mark.parametrize("text", ["", "{}", "\n\n", "[1, 2", "0\n{}"])
def test_a_foreign_manifest_is_refused(store: ArtifactStore, text: str) -> None:
    (store.path_of(DIGEST) / MANIFEST).write_text(text)
    with pytest.raises(ArtifactError):
        store.manifest(DIGEST)


def test_leftovers_of_killed_writers_are_swept_once_they_are_old(store: ArtifactStore) -> None:
    for name, age_s in (("old", 7200), ("new", 10)):
        folder = store.root / "staging" / name
        folder.mkdir(parents=True, exist_ok=True)
        then = folder.stat().st_mtime - age_s
        os.utime(folder, (then, then))
    assert store.sweep_staging() == 1
    assert [path.name for path in (store.root / "staging").iterdir()] == ["new"]


def test_a_discarded_artifact_is_gone(store: ArtifactStore, folder: Path) -> None:
    store.discard(DIGEST)
    assert not store.contains(DIGEST)
    assert store.publish(DIGEST, folder, compiler="test", conditions=[])
    store.discard("ef" * 32)
