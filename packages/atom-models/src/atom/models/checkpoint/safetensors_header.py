"""The header of a safetensors file, checked before any of its numbers is used."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from atom.models.checkpoint.checkpoint import TensorInfo
from atom.models.checkpoint.json_document import parse_object
from atom.models.checkpoint.names import check_name, shown
from atom.models.errors import CorruptCheckpointError, UnsupportedCheckpointError

if TYPE_CHECKING:
    from pathlib import Path

LARGEST_HEADER_BYTES = 100_000_000
"""The format's own limit on a header."""

LARGEST_RANK = 8
"""More dimensions than any weight has."""

# Stored name -> (torch name, bytes an element).
DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}


@dataclass(frozen=True, slots=True)
class _Span:
    name: str
    begin: int
    end: int


def read_safetensors_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors a safetensors file holds, by name, in the order of their data.

    Raises:
        CorruptCheckpointError: cut off, or a header that contradicts itself or the file's size.
        UnsupportedCheckpointError: a number format that torch has no type for.
    """
    document, data_bytes = _read_document(path)
    document.pop("__metadata__", None)
    spans, infos = [], {}
    for name, entry in document.items():
        check_name(path, name)
        info, span = _tensor(path, name, entry, data_bytes)
        infos[name] = info
        spans.append(span)
    spans.sort(key=lambda span: (span.begin, span.end))
    _check_layout(path, spans, data_bytes)
    return {span.name: infos[span.name] for span in spans}


def _read_document(path: Path) -> tuple[dict[str, Any], int]:
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            if len(prefix) < 8:
                raise CorruptCheckpointError(
                    f"{path}: {file_bytes} bytes are too few for a safetensors file; it is cut off"
                )
            header_bytes = int.from_bytes(prefix, "little")
            if header_bytes > min(file_bytes - 8, LARGEST_HEADER_BYTES):
                raise CorruptCheckpointError(
                    f"{path}: the header claims {header_bytes} bytes in a file of {file_bytes}; "
                    "it is cut off or no safetensors file"
                )
            header = file.read(header_bytes)
    except OSError as error:
        raise CorruptCheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    return parse_object(path, header, what="header"), file_bytes - 8 - header_bytes


def _tensor(path: Path, name: str, entry: object, data_bytes: int) -> tuple[TensorInfo, _Span]:
    if not isinstance(entry, dict):
        raise CorruptCheckpointError(
            f"{path}: tensor {shown(name)} is described by {shown(entry)}, not an object"
        )
    stored, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(stored, str) or stored not in DTYPES:
        raise UnsupportedCheckpointError(
            f"{path}: tensor {shown(name)} has number format {shown(stored)}; supported are "
            f"{', '.join(DTYPES)}"
        )
    if not _whole_numbers(shape):
        raise CorruptCheckpointError(f"{path}: tensor {shown(name)} has shape {shown(shape)}")
    if len(shape) > LARGEST_RANK:
        raise CorruptCheckpointError(
            f"{path}: tensor {shown(name)} has {len(shape)} dimensions, more than {LARGEST_RANK}"
        )
    if not _whole_numbers(offsets) or len(offsets) != 2:
        raise CorruptCheckpointError(f"{path}: tensor {shown(name)} has data offsets {shown(offsets)}")
    begin, end = offsets
    if not begin <= end <= data_bytes:
        raise CorruptCheckpointError(
            f"{path}: tensor {shown(name)} lies at bytes {begin} to {end} of {data_bytes}; the file is cut "
            "off or damaged"
        )
    dtype, item_bytes = DTYPES[stored]
    # Python's whole numbers do not wrap, so a product of huge dimensions is simply too large here.
    nbytes = math.prod(shape) * item_bytes
    if nbytes != end - begin:
        raise CorruptCheckpointError(
            f"{path}: tensor {shown(name)} of shape {shown(shape)} and format {stored} needs {nbytes} bytes "
            f"but has {end - begin}"
        )
    return TensorInfo(name, tuple(shape), dtype, nbytes), _Span(name, begin, end)


def _whole_numbers(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value
    )


def _check_layout(path: Path, spans: list[_Span], data_bytes: int) -> None:
    """The data section is covered from end to end, and no byte belongs to two tensors."""
    position, before = 0, "the header"
    for span in spans:
        if span.begin != position:
            fault = "overlaps" if span.begin < position else "leaves a gap after"
            raise CorruptCheckpointError(f"{path}: tensor {shown(span.name)} {fault} {before}")
        position, before = span.end, f"tensor {shown(span.name)}"
    if position != data_bytes:
        raise CorruptCheckpointError(
            f"{path}: {data_bytes - position} bytes after {before} belong to no tensor"
        )
