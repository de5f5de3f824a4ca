"""Names found in files: how they are shown in a one-line message, and which are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom.models.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST_SHOWN = 80
_LONGEST_NAME = 1024


def shown(value: object) -> str:
    """`value` as a message may carry it: quoted, escaped to one line of ASCII, and cut when long."""
    # Cut before escaping: a value from a hostile file may be as long as the file.
    text = value[: _LONGEST_SHOWN + 1] if isinstance(value, str | bytes) else value
    try:
        escaped = ascii(text)
    except RecursionError:
        escaped = f"a {type(value).__name__} nested too deep to show"
    return escaped if len(escaped) <= _LONGEST_SHOWN else f"{escaped[:_LONGEST_SHOWN]}..."


def check_name(path: Path, name: str, *, what: str = "tensor") -> None:
    """Refuse a name no exporter writes: empty, huge, with control characters, or shaped like a path out.

    Raises:
        CorruptCheckpointError: naming the file and the name.
    """
    if not name:
        raise CorruptCheckpointError(f"{path}: a {what} has an empty name")
    if len(name) > _LONGEST_NAME:
        raise CorruptCheckpointError(
            f"{path}: {what} name {shown(name)} has {len(name)} characters, more than {_LONGEST_NAME}"
        )
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise CorruptCheckpointError(f"{path}: {what} name {shown(name)} holds a control character")
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
        raise CorruptCheckpointError(f"{path}: {what} name {shown(name)} looks like a path")


def check_file_name(path: Path, name: str) -> None:
    """Refuse the name of a neighbouring file unless it is a plain name in the same folder.

    Raises:
        CorruptCheckpointError: naming the file that holds it and the name.
    """
    check_name(path, name, what="file")
    if "/" in name or "\\" in name or name in (".", ".."):
        raise CorruptCheckpointError(f"{path}: {shown(name)} is not a plain file name in the same folder")
