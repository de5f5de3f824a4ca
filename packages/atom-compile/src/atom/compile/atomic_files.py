"""Files and folders that other processes see whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import time
from typing import TYPE_CHECKING

try:
    import fcntl
except ImportError:  # a platform without advisory locks: work is done twice there, results stay right
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["file_digest", "process_lock", "remove_tree", "unique_name", "write_text"]


def unique_name() -> str:
    """A file name that no other process makes."""
    return f"{os.getpid()}-{secrets.token_hex(6)}"


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step.

    Raises:
        OSError: the folder cannot be written, or is full; `path` is then what it was before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{unique_name()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's content, as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_tree(path: Path) -> None:
    """Remove a folder that others may be using: first out of its name, then its content."""
    doomed = path.with_name(f".{path.name}.{unique_name()}")
    with contextlib.suppress(OSError):
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


@contextlib.contextmanager
def process_lock(path: Path, *, patience_s: float) -> Iterator[bool]:
    """Hold the advisory lock `path` for the body, so that one process does work that others wait for.

    Never more than an economy: where the lock cannot be made, or its holder takes longer than
    `patience_s`, the body runs without it. The kernel frees the lock of a process that dies.

    Yields:
        Whether the lock is held.
    """
    descriptor = None
    held = False
    try:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
                held = _acquire(descriptor, patience_s)
        yield held
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _acquire(descriptor: int, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True
