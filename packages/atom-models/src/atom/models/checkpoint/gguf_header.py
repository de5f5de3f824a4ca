"""The header of a GGUF file: metadata and tensor table, checked before any of its numbers is used.

Written against the GGUF specification, versions 2 and 3. The `gguf` package has a reader too; it takes counts
and offsets on trust, which a file from elsewhere does not deserve.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atom.models.checkpoint.byte_cursor import ByteCursor
from atom.models.checkpoint.gguf_types import SUPPORTED, GGUFType, describe, supported_names
from atom.models.checkpoint.names import check_name, shown
from atom.models.errors import CorruptCheckpointError, UnsupportedCheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAGIC = b"GGUF"
VERSIONS = (2, 3)
LARGEST_RANK = 4
DEEPEST_ARRAY = 4
DEFAULT_ALIGNMENT = 32
LARGEST_ALIGNMENT = 1 << 16

_STRING, _ARRAY = 8, 9
# Value type -> struct layout of one, `array` code of many.
_NUMBERS = {
    0: (struct.Struct("<B"), "B"),
    1: (struct.Struct("<b"), "b"),
    2: (struct.Struct("<H"), "H"),
    3: (struct.Struct("<h"), "h"),
    4: (struct.Struct("<I"), "I"),
    5: (struct.Struct("<i"), "i"),
    6: (struct.Struct("<f"), "f"),
    7: (struct.Struct("<?"), "B"),
    10: (struct.Struct("<Q"), "Q"),
    11: (struct.Struct("<q"), "q"),
    12: (struct.Struct("<d"), "d"),
}
_SMALLEST_STRING = 8  # its length alone
_SMALLEST_ARRAY = 12  # element type and count
_SMALLEST_PAIR = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One row of the tensor table; `shape` is in torch's order, `offset` counts from the file's start."""

    name: str
    shape: tuple[int, ...]
    type: GGUFType
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What a GGUF file says before its data; in `metadata`, arrays of numbers are `array.array`."""

    path: Path
    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]


def read_gguf_header(path: Path, data: memoryview) -> GGUFHeader:
    """Parse and check the header of the mapped file `data`; `path` is for messages.

    Raises:
        CorruptCheckpointError: cut off, or a header that contradicts itself or the file's size.
        UnsupportedCheckpointError: another version or byte order, or a number format that is not read here.
    """
    cursor = ByteCursor(path, data)
    version = _read_version(cursor)
    tensor_count = _bounded_count(cursor, "tensors", _SMALLEST_TENSOR)
    pair_count = _bounded_count(cursor, "metadata entries", _SMALLEST_PAIR)
    metadata = _read_metadata(cursor, pair_count)
    alignment = _alignment(path, metadata)
    tensors = _read_tensors(cursor, tensor_count)
    data_begin = _round_up(cursor.position, alignment)
    placed = _place(path, tensors, data_begin=data_begin, alignment=alignment, file_bytes=len(data))
    return GGUFHeader(path, version, metadata, placed)


def _read_version(cursor: ByteCursor) -> int:
    begin = cursor.skip(4)
    if bytes(cursor.data[begin : begin + 4]) != MAGIC:
        raise CorruptCheckpointError(f"{cursor.path}: does not begin with 'GGUF', so it is no GGUF file")
    version = cursor.uint32()
    if version in VERSIONS:
        return version
    if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
        raise UnsupportedCheckpointError(
            f"{cursor.path}: a big-endian GGUF file; only little-endian ones are read"
        )
    raise UnsupportedCheckpointError(
        f"{cursor.path}: GGUF version {version}; supported are {' and '.join(map(str, VERSIONS))}"
    )


def _bounded_count(cursor: ByteCursor, what: str, smallest: int) -> int:
    """A count of things that take at least `smallest` bytes each, so that no loop outruns the file."""
    count = cursor.uint64()
    if count > cursor.left // smallest:
        raise CorruptCheckpointError(
            f"{cursor.path}: claims {count} {what}, more than fit into its {len(cursor.data)} bytes"
        )
    return count


def _read_metadata(cursor: ByteCursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        cursor.what = f"metadata entry {index}"
        key = cursor.text()
        check_name(cursor.path, key, what="metadata key")
        if key in metadata:
            raise CorruptCheckpointError(f"{cursor.path}: metadata key {shown(key)} is given twice")
        cursor.what = f"metadata value {shown(key)}"
        metadata[key] = _read_value(cursor, cursor.uint32(), depth=0)
    return metadata


def _read_value(cursor: ByteCursor, type_: int, *, depth: int) -> Any:
    if type_ == _STRING:
        return cursor.text()
    if type_ in _NUMBERS:
        return cursor.unpack(_NUMBERS[type_][0])[0]
    if type_ != _ARRAY:
        raise CorruptCheckpointError(f"{cursor.path}: {cursor.what} has unknown value type {type_}")
    if depth >= DEEPEST_ARRAY:
        raise CorruptCheckpointError(
            f"{cursor.path}: {cursor.what} is an array nested more than {DEEPEST_ARRAY} deep"
        )
    element = cursor.uint32()
    if element in _NUMBERS:
        count = _bounded_count(cursor, f"elements in {cursor.what}", _NUMBERS[element][0].size)
        return cursor.numbers(_NUMBERS[element][1], count)
    smallest = _SMALLEST_STRING if element == _STRING else _SMALLEST_ARRAY
    count = _bounded_count(cursor, f"elements in {cursor.what}", smallest)
    return [_read_value(cursor, element, depth=depth + 1) for _ in range(count)]


def _alignment(path: Path, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    sound = (
        isinstance(alignment, int) and not isinstance(alignment, bool) and 0 < alignment <= LARGEST_ALIGNMENT
    )
    if not sound or alignment & (alignment - 1):
        raise CorruptCheckpointError(
            f"{path}: general.alignment is {shown(alignment)}, expected a power of two up to "
            f"{LARGEST_ALIGNMENT}"
        )
    return int(alignment)


def _read_tensors(cursor: ByteCursor, count: int) -> dict[str, GGUFTensor]:
    """The tensor table, with offsets still counted from the start of the data."""
    tensors: dict[str, GGUFTensor] = {}
    for index in range(count):
        cursor.what = f"entry {index} of the tensor table"
        name = cursor.text()
        check_name(cursor.path, name)
        if name in tensors:
            raise CorruptCheckpointError(f"{cursor.path}: tensor {shown(name)} is given twice")
        cursor.what = f"tensor {shown(name)}"
        rank = cursor.uint32()
        if not 1 <= rank <= LARGEST_RANK:
            raise CorruptCheckpointError(
                f"{cursor.path}: tensor {shown(name)} has {rank} dimensions, expected 1 to {LARGEST_RANK}"
            )
        dimensions = [cursor.uint64() for _ in range(rank)]
        type_ = _type(cursor, name, cursor.uint32())
        if 0 in dimensions or dimensions[0] % type_.block:
            raise CorruptCheckpointError(
                f"{cursor.path}: tensor {shown(name)} has dimensions {dimensions}; "
                f"rows of {type_.name} are whole blocks of {type_.block}"
            )
        # Python's whole numbers do not wrap, so a product of huge dimensions is simply too large later on.
        nbytes = type_.nbytes(math.prod(dimensions))
        # The file lists the fastest dimension first, torch the slowest.
        tensors[name] = GGUFTensor(name, tuple(reversed(dimensions)), type_, cursor.uint64(), nbytes)
    return tensors


def _type(cursor: ByteCursor, name: str, number: int) -> GGUFType:
    if number not in SUPPORTED:
        raise UnsupportedCheckpointError(
            f"{cursor.path}: tensor {shown(name)} has number format {describe(number)}; "
            f"supported are {supported_names()}"
        )
    return SUPPORTED[number]


def _place(
    path: Path, tensors: Mapping[str, GGUFTensor], *, data_begin: int, alignment: int, file_bytes: int
) -> dict[str, GGUFTensor]:
    """Offsets as positions in the file; tensors lie in table order without overlap, as all writers do it."""
    placed: dict[str, GGUFTensor] = {}
    position, before = data_begin, "the header"
    for name, tensor in tensors.items():
        begin = data_begin + tensor.offset
        end = begin + tensor.nbytes
        if tensor.offset % alignment:
            raise CorruptCheckpointError(
                f"{path}: tensor {shown(name)} begins at data offset {tensor.offset}, no multiple of "
                f"{alignment}"
            )
        if begin < position:
            raise CorruptCheckpointError(f"{path}: tensor {shown(name)} overlaps or precedes {before}")
        if end > file_bytes:
            raise CorruptCheckpointError(
                f"{path}: tensor {shown(name)} ends at byte {end} of {file_bytes}; the file is cut off or "
                "damaged"
            )
        placed[name] = GGUFTensor(name, tensor.shape, tensor.type, begin, tensor.nbytes)
        position, before = end, f"tensor {shown(name)}"
    # Writers pad the last tensor too. Some may not; but nobody stops inside the padding.
    if placed and position < file_bytes < _round_up(position, alignment):
        raise CorruptCheckpointError(f"{path}: ends inside the padding after {before}; the file is cut off")
    return placed


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
