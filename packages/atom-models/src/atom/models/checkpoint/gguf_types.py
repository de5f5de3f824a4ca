"""Number formats of GGUF tensors that are read here, with their block sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GGUFType:
    """A format: `block` consecutive elements of a row take `block_bytes` bytes."""

    number: int
    name: str
    block: int
    block_bytes: int

    def nbytes(self, elements: int) -> int:
        """Bytes of `elements` elements, a whole number of blocks."""
        return elements // self.block * self.block_bytes


# Numbers and sizes are part of the GGUF format; a test compares them with the `gguf` package's.
SUPPORTED = {
    type_.number: type_
    for type_ in (
        GGUFType(0, "F32", 1, 4),
        GGUFType(1, "F16", 1, 2),
        GGUFType(30, "BF16", 1, 2),
        GGUFType(2, "Q4_0", 32, 18),
        GGUFType(3, "Q4_1", 32, 20),
        GGUFType(6, "Q5_0", 32, 22),
        GGUFType(7, "Q5_1", 32, 24),
        GGUFType(8, "Q8_0", 32, 34),
        GGUFType(10, "Q2_K", 256, 84),
        GGUFType(11, "Q3_K", 256, 110),
        GGUFType(12, "Q4_K", 256, 144),
        GGUFType(13, "Q5_K", 256, 176),
        GGUFType(14, "Q6_K", 256, 210),
    )
}

FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Formats that hold plain values, with torch's names for them."""


def supported_names() -> str:
    """The formats, listed for a message."""
    return ", ".join(type_.name for type_ in SUPPORTED.values())


def describe(number: int) -> str:
    """A format number with its name, where the `gguf` package knows one."""
    from gguf.constants import GGMLQuantizationType  # only for a message

    try:
        return f"{GGMLQuantizationType(number).name} ({number})"
    except ValueError:
        return f"number {number}"
