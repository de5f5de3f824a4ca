"""Number formats of cached index keys, and of the queries that meet them."""

from __future__ import annotations

import math
from typing import Literal, Protocol

import torch

IndexCacheType = Literal["fp4", "fp8", "model"]

_GROUP = 32
"""Numbers that share a scale in FP4."""
_FP4_MAX, _FP8_MAX = 6.0, 448.0
_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_EXPONENT_BIAS = 127


class IndexFormat(Protocol):
    """How index keys of `width` numbers lie in the cache."""

    @property
    def dtype(self) -> str:
        """Torch's name of the cache's number format."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a cache row."""

    def encode(self, keys: torch.Tensor) -> torch.Tensor:
        """`[n, *row_shape]` in the cache's dtype, of keys `[n, width]`."""

    def decode(self, rows: torch.Tensor) -> torch.Tensor:
        """Float32 `[..., width]` of cache rows `[..., *row_shape]`."""

    def query(self, queries: torch.Tensor) -> torch.Tensor:
        """Float32 queries `[..., width]` as they are multiplied with decoded keys."""


def index_format(kind: IndexCacheType, width: int, dtype: torch.dtype) -> IndexFormat:
    """The format of a setting; `dtype` is what "model" means."""
    if kind == "fp4":
        return Fp4Index(width)
    return Fp8Index(width) if kind == "fp8" else PlainIndex(width, dtype)


class PlainIndex:
    """Keys in the model's own number format."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        self.dtype, self.row_shape = str(dtype).removeprefix("torch."), (width,)
        self._torch_dtype = dtype

    def encode(self, keys: torch.Tensor) -> torch.Tensor:
        return keys.to(self._torch_dtype)

    def decode(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.float()

    def query(self, queries: torch.Tensor) -> torch.Tensor:
        return queries.float()


class Fp8Index:
    """e4m3 with one float32 scale a vector: `width` bytes, then the 4 of the scale."""

    def __init__(self, width: int) -> None:
        self.dtype, self.row_shape, self._width = "uint8", (width + 4,), width

    def encode(self, keys: torch.Tensor) -> torch.Tensor:
        scaled, scale = _to_fp8(keys)
        return torch.cat((scaled.view(torch.uint8), scale.view(torch.uint8)), dim=-1)

    def decode(self, rows: torch.Tensor) -> torch.Tensor:
        values = rows[..., : self._width].contiguous().view(torch.float8_e4m3fn).float()
        return values * rows[..., self._width :].contiguous().view(torch.float32)

    def query(self, queries: torch.Tensor) -> torch.Tensor:
        scaled, scale = _to_fp8(queries)
        return scaled.float() * scale


class Fp4Index:
    """e2m1 with one power of two for 32 numbers: two numbers a byte, the first in the low half, then scales.

    Keys and queries go through a Walsh-Hadamard transform before they are rounded, as in training: it leaves
    their products alone and spreads what stands out, so that less is lost.
    """

    def __init__(self, width: int) -> None:
        """`width` is a power of two and a multiple of 32."""
        self.dtype, self.row_shape, self._width = "uint8", (width // 2 + width // _GROUP,), width

    def encode(self, keys: torch.Tensor) -> torch.Tensor:
        codes, exponent = _to_fp4(hadamard(keys.float()))
        packed = codes[..., 0::2] | codes[..., 1::2] << 4
        return torch.cat((packed, (exponent + _EXPONENT_BIAS).to(torch.uint8)), dim=-1)

    def decode(self, rows: torch.Tensor) -> torch.Tensor:
        packed, exponent = rows[..., : self._width // 2], rows[..., self._width // 2 :]
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
        return _from_fp4(codes, exponent.to(torch.int32) - _EXPONENT_BIAS)

    def query(self, queries: torch.Tensor) -> torch.Tensor:
        return _from_fp4(*_to_fp4(hadamard(queries.float())))


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """The orthonormal Walsh-Hadamard transform of the last dimension, a power of two."""
    width, half = x.shape[-1], 1
    while half < width:
        pairs = x.reshape(*x.shape[:-1], -1, 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        x = torch.stack((first + second, first - second), dim=-2).flatten(-3)
        half *= 2
    return x * (1 / math.sqrt(width))


def _to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers in e4m3, and the float32 scale `[..., 1]` they are to be multiplied with."""
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-4) / _FP8_MAX
    return (x / scale).to(torch.float8_e4m3fn), scale


def _to_fp4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 `[..., width]`, ties to the even one, and exponents int32 `[..., width / 32]`."""
    groups = x.reshape(*x.shape[:-1], -1, _GROUP)
    largest = groups.abs().amax(-1).clamp(min=_FP4_MAX * 2.0**-126)
    exponent = torch.ceil(torch.log2(largest / _FP4_MAX))
    size = (groups * torch.exp2(-exponent).unsqueeze(-1)).abs().flatten(-2)
    code = torch.zeros_like(size, dtype=torch.uint8)
    for number, midpoint in enumerate(_MIDPOINTS):
        code += size > midpoint if number % 2 == 0 else size >= midpoint
    return code | (x < 0).to(torch.uint8) << 3, exponent.to(torch.int32)


def _from_fp4(codes: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    magnitude = codes & 7
    # 2^(e-1) * (1 + m/2), with e = 0 for the two numbers below 1: arithmetic, since a table is host data.
    exp, mantissa = (magnitude >> 1).float(), (magnitude & 1).float()
    value = torch.where(exp > 0, torch.exp2(exp - 1) * (1 + mantissa / 2), mantissa / 2)
    value = torch.where(codes > 7, -value, value).view(*codes.shape[:-1], -1, _GROUP)
    return (value * torch.exp2(exponent.float()).unsqueeze(-1)).flatten(-2)
