"""JSON files of a checkpoint, read within bounds: of size and depth, no key twice, an object at the top."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from atom.models.checkpoint.names import shown
from atom.models.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from pathlib import Path

LARGEST_DOCUMENT_BYTES = 512 * 1024 * 1024
"""Largest JSON file read. Vocabularies of a million tokens stay below a tenth of it."""


def read_text(path: Path) -> str:
    """The whole of a text file.

    Raises:
        CorruptCheckpointError: it cannot be read, is not UTF-8, or is larger than any such file is.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST_DOCUMENT_BYTES:
            raise CorruptCheckpointError(
                f"{path}: {size} bytes, more than {LARGEST_DOCUMENT_BYTES} for this kind of file"
            )
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise CorruptCheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None


def parse_object(path: Path, text: str | bytes, *, what: str = "file") -> dict[str, Any]:
    """The JSON object in `text`; `path` and `what` are for messages.

    Raises:
        CorruptCheckpointError: not JSON, nested too deep, the same key twice, or not an object.
    """
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _without_duplicates(path, pairs))
    except json.JSONDecodeError as error:
        raise CorruptCheckpointError(
            f"{path}: {what} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError(f"{path}: {what} is not UTF-8 text (byte {error.start})") from None
    except RecursionError:
        raise CorruptCheckpointError(f"{path}: {what} is nested too deep") from None
    except CorruptCheckpointError:
        raise
    except ValueError as error:  # a number of more digits than Python converts
        raise CorruptCheckpointError(f"{path}: {what} holds a value that cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise CorruptCheckpointError(
            f"{path}: {what} holds a JSON {type(value).__name__}, expected an object"
        )
    return value


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object a file holds.

    Raises:
        CorruptCheckpointError: see `read_text` and `parse_object`.
    """
    return parse_object(path, read_text(path))


def _without_duplicates(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise CorruptCheckpointError(f"{path}: {shown(key)} is given twice")
            seen.add(key)
    return result
