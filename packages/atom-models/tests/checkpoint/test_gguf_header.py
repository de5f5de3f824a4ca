"""Headers are read as written; what a damaged one does is in test_hostile_files.py."""

from __future__ import annotations

import array
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atom.models.checkpoint.gguf_header import GGUFHeader, read_gguf_header
from atom.models.errors import CorruptCheckpointError, UnsupportedCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def parse() -> Callable[[bytes], GGUFHeader]:
    return lambda raw: read_gguf_header(Path("some.gguf"), memoryview(raw))


def test_every_kind_of_value_is_read(gguf_bytes: Any, parse: Callable[[bytes], GGUFHeader]) -> None:
    file = gguf_bytes()
    numbers = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    for type_, code in numbers.items():
        file.pair(f"number.{type_}", type_, struct.pack(f"<{code}", 1))
        file.pair(f"many.{type_}", 9, struct.pack(f"<IQ3{code}", type_, 3, 0, 1, 1))
    file.string("text", "größe")
    file.pair("texts", 9, struct.pack("<IQ", 8, 2) + file.text("a") + file.text(""))
    file.pair("nested", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ2B", 0, 2, 7, 8))
    metadata = parse(file.build()).metadata
    for type_ in numbers:
        assert metadata[f"number.{type_}"] == 1
        assert list(metadata[f"many.{type_}"]) == [0, 1, 1]
        assert isinstance(metadata[f"many.{type_}"], array.array)
    assert metadata["number.7"] is True
    assert metadata["text"] == "größe"
    assert metadata["texts"] == ["a", ""]
    assert [list(inner) for inner in metadata["nested"]] == [[7, 8]]


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_tensors_are_placed_by_the_files_own_alignment(
    alignment: int, gguf_bytes: Any, parse: Callable[[bytes], GGUFHeader]
) -> None:
    file = gguf_bytes().uint32("general.alignment", alignment)
    second = -(-24 // alignment) * alignment
    file.tensor("a", [3, 2]).tensor("b", [32], type_=8, offset=second)
    file.data = bytes(second + 34 + (-(second + 34) % alignment))
    raw = file.build(alignment=alignment)
    header = parse(raw)
    begin = len(raw) - len(file.data)
    assert begin % alignment == 0
    first, other = header.tensors["a"], header.tensors["b"]
    assert (first.shape, first.type.name, first.offset, first.nbytes) == ((2, 3), "F32", begin, 24)
    assert (other.shape, other.type.name, other.offset, other.nbytes) == ((32,), "Q8_0", begin + second, 34)


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_in_use_are_read(
    version: int, gguf_bytes: Any, parse: Callable[[bytes], GGUFHeader]
) -> None:
    assert parse(gguf_bytes(version).string("k", "v").build()).version == version


def test_other_versions_and_byte_orders_are_named(
    gguf_bytes: Any, parse: Callable[[bytes], GGUFHeader]
) -> None:
    with pytest.raises(UnsupportedCheckpointError, match="GGUF version 1; supported are 2 and 3"):
        parse(gguf_bytes(1).build())
    with pytest.raises(UnsupportedCheckpointError, match="big-endian"):
        parse(gguf_bytes(3 << 24).build())


def test_a_file_may_end_with_its_last_tensor_or_after_its_padding_but_not_between(
    gguf_bytes: Any, parse: Callable[[bytes], GGUFHeader]
) -> None:
    file = gguf_bytes().tensor("a", [3])
    for length in (12, 32, 40):
        file.data = bytes(length)
        assert parse(file.build()).tensors["a"].nbytes == 12
    for length in (13, 31):
        file.data = bytes(length)
        with pytest.raises(CorruptCheckpointError, match="inside the padding after tensor 'a'"):
            parse(file.build())
    file.data = bytes(11)
    with pytest.raises(CorruptCheckpointError, match=r"tensor 'a' ends at byte .* cut off"):
        parse(file.build())


def test_a_format_that_is_known_but_not_read_is_called_by_its_name(
    gguf_bytes: Any, parse: Callable[[bytes], GGUFHeader]
) -> None:
    with pytest.raises(
        UnsupportedCheckpointError, match=r"tensor 'a' has number format IQ2_XXS \(16\); supported are F32"
    ):
        parse(gguf_bytes().tensor("a", [256], type_=16).build())
