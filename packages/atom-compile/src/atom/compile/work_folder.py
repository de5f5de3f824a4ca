"""This process's own folder for what a compiler writes and reads."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["work_folder"]


def work_folder() -> Path:
    """The folder; made on first use, removed when the process ends."""
    return _folder_of(os.getpid())


@functools.cache
def _folder_of(pid: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="atom-compile-"))
    atexit.register(_remove, folder, pid)
    return folder


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child inherits the hook, not the folder
        shutil.rmtree(folder, ignore_errors=True)
