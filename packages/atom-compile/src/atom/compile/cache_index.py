"""The index of a run: which artifact serves which piece.

A Python dictionary literal, written with `pprint` so that people can read it, and read back with
`ast.literal_eval`: whatever the file holds, none of it is executed.
"""

from __future__ import annotations

import ast
import logging
import pprint
import re
from typing import TYPE_CHECKING, Any

from atom.compile.atomic_files import process_lock, write_text

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["INDEX_NAME", "IndexKey", "read_index", "update_index"]

logger = logging.getLogger(__name__)

INDEX_NAME = "vllm_compile_cache.py"
IndexKey = tuple[int | None, int, str]
"""Runtime shape (None: general), graph index, backend name."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_BYTES = 16 << 20
_LOCK_PATIENCE_S = 10.0


def read_index(path: Path) -> dict[IndexKey, str]:
    """The entries of an index file; empty, with a logged reason, when it is missing, damaged or foreign."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"larger than {_MAX_BYTES} bytes")
        entries = ast.literal_eval(path.read_text(encoding="utf-8"))
        return _checked(entries)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        logger.warning("compile cache index %s is not used: %s", path, error)
        return {}


def update_index(path: Path, entries: dict[IndexKey, str]) -> None:
    """Add `entries` to an index file, beside those that other processes have added.

    Raises:
        OSError: it cannot be written; the file is then what it was before.
    """
    with process_lock(path.with_name(f".{path.name}.lock"), patience_s=_LOCK_PATIENCE_S):
        merged = read_index(path) | entries
        ordered = dict(sorted(merged.items(), key=lambda item: (item[0][1], item[0][0] or 0, item[0][2])))
        write_text(path, pprint.pformat(ordered, sort_dicts=False) + "\n")


def _checked(entries: Any) -> dict[IndexKey, str]:
    if not isinstance(entries, dict):
        raise ValueError("not a dictionary")
    for key, value in entries.items():
        match key:
            case (int() | None, int(), str()) if isinstance(value, str) and _DIGEST.fullmatch(value):
                continue
        raise ValueError(f"foreign entry {key!r}")
    return entries
