"""Every block format decodes to what the `gguf` package decodes it to, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from atom.models.checkpoint.gguf_dequant import dequantise
from atom.models.checkpoint.gguf_types import FLOATS, SUPPORTED, GGUFType


def decoded(raw: np.ndarray, type_: GGUFType, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    out = torch.full(shape, torch.nan, dtype=dtype)
    dequantise(raw, type_, out)
    return out


BLOCK_FORMATS = [type_ for type_ in SUPPORTED.values() if type_.name not in FLOATS]


def random_blocks(type_: GGUFType, count: int) -> np.ndarray:
    """Random bytes, with every float16 that a block format keeps in a known place made finite."""
    raw = np.random.default_rng(0).integers(0, 256, (count, type_.block_bytes), dtype=np.uint8)
    # Scales are at the front or at the back; clearing the top exponent bit of both ends' halves keeps them
    # finite.
    for byte in (1, 3, -1, -3):
        raw[:, byte] &= 0b1011_1111
    return raw


@pytest.mark.parametrize("type_", BLOCK_FORMATS, ids=lambda type_: type_.name)
def test_blocks_decode_as_in_the_gguf_package(type_: GGUFType) -> None:
    raw = random_blocks(type_, 6)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(type_.number))
    got = decoded(raw.reshape(-1), type_, (2, 3 * type_.block), torch.float32)
    assert got.shape == (2, 3 * type_.block)
    assert np.isfinite(expected).all()
    assert np.array_equal(got.numpy().reshape(6, -1), expected)


@pytest.mark.parametrize("type_", BLOCK_FORMATS, ids=lambda type_: type_.name)
def test_another_dtype_is_the_float32_value_rounded_once(type_: GGUFType) -> None:
    raw = random_blocks(type_, 4).reshape(-1)
    exact = decoded(raw, type_, (4, type_.block), torch.float32)
    rounded = decoded(raw, type_, (4, type_.block), torch.bfloat16)
    assert torch.equal(rounded, exact.to(torch.bfloat16))


@pytest.mark.parametrize("number", [3, 8, 14])
def test_a_tensor_of_many_runs_decodes_like_its_parts(number: int) -> None:
    type_ = SUPPORTED[number]
    blocks = 2 * (1 << 15) // type_.block + 5  # two whole runs and a rest
    raw = random_blocks(type_, blocks)
    whole = decoded(raw.reshape(-1), type_, (blocks, type_.block), torch.float32)
    for begin, end in ((0, 3), (blocks - 7, blocks), (blocks // 2 - 3, blocks // 2 + 3)):
        part = decoded(raw[begin:end].reshape(-1), type_, (end - begin, type_.block), torch.float32)
        assert torch.equal(whole[begin:end], part)


@pytest.mark.parametrize(("number", "dtype"), [(0, torch.float32), (1, torch.float16), (30, torch.bfloat16)])
def test_plain_values_are_copied_as_they_are(number: int, dtype: torch.dtype) -> None:
    values = torch.randn(3, 5).to(dtype)
    raw = values.view(torch.uint8).numpy().reshape(-1).copy()
    raw.flags.writeable = False  # as a read-only map is
    got = decoded(raw, SUPPORTED[number], (3, 5), dtype)
    assert torch.equal(got, values)
    got.zero_()
    assert torch.equal(decoded(raw, SUPPORTED[number], (3, 5), dtype), values)
