"""A position in a mapped file that refuses to step past the end."""

from __future__ import annotations

import array
from typing import TYPE_CHECKING

from atom.models.checkpoint.names import shown
from atom.models.errors import CorruptCheckpointError

if TYPE_CHECKING:
    import struct
    from pathlib import Path


class ByteCursor:
    """Reads little-endian values one after another; every length is first compared with what is left."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path = path
        self.data = data
        self.position = 0
        self.what = "header"
        """What is being read, for messages."""

    @property
    def left(self) -> int:
        """Bytes between here and the end of the file."""
        return len(self.data) - self.position

    def skip(self, count: int) -> int:
        """Step over `count` bytes and return where they begin.

        Raises:
            CorruptCheckpointError: the file has fewer left.
        """
        begin = self.position
        if count > self.left:
            raise CorruptCheckpointError(
                f"{self.path}: {self.what} needs {count} bytes at offset {begin} of {len(self.data)}; "
                "the file is cut off or damaged"
            )
        self.position = begin + count
        return begin

    def unpack(self, layout: struct.Struct) -> tuple[int | float | bool, ...]:
        """The values of one `struct` layout."""
        return layout.unpack_from(self.data, self.skip(layout.size))

    def uint32(self) -> int:
        """An unsigned number of 4 bytes."""
        begin = self.skip(4)
        return int.from_bytes(self.data[begin : begin + 4], "little")

    def uint64(self) -> int:
        """An unsigned number of 8 bytes."""
        begin = self.skip(8)
        return int.from_bytes(self.data[begin : begin + 8], "little")

    def text(self) -> str:
        """A string: its length in 8 bytes, then UTF-8."""
        count = self.uint64()
        begin = self.skip(count)
        raw = bytes(self.data[begin : begin + count])
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise CorruptCheckpointError(
                f"{self.path}: {self.what} holds {shown(raw)}, not UTF-8 text"
            ) from None

    def numbers(self, code: str, count: int) -> array.array[int] | array.array[float]:
        """`count` numbers of one `array` type code, kept as compact as they are in the file."""
        values: array.array[int] | array.array[float] = array.array(code)
        size = values.itemsize * count
        begin = self.skip(size)
        values.frombytes(self.data[begin : begin + size])
        return values
