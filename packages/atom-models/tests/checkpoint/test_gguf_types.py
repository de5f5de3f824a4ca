from __future__ import annotations

import gguf
import pytest

from atom.models.checkpoint.gguf_types import SUPPORTED, describe, supported_names


def test_numbers_and_sizes_are_the_formats_own() -> None:
    for number, type_ in SUPPORTED.items():
        public = gguf.GGMLQuantizationType(number)
        assert (public.name, gguf.GGML_QUANT_SIZES[public]) == (type_.name, (type_.block, type_.block_bytes))


@pytest.mark.parametrize(
    "name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q6_K"]
)
def test_every_promised_format_is_there(name: str) -> None:
    assert name in supported_names().split(", ")


def test_bytes_are_counted_in_blocks() -> None:
    assert SUPPORTED[8].nbytes(96) == 3 * 34


def test_unknown_numbers_are_shown_as_numbers() -> None:
    assert describe(16) == "IQ2_XXS (16)"
    assert describe(12345) == "number 12345"
