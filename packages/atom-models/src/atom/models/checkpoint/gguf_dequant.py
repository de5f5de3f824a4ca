"""GGUF blocks to plain values, a cache-sized run of blocks at a time.

The 32-element formats, which most files consist of, are decoded here with torch; the K-quants go through the
`gguf` package. Results equal the `gguf` package's to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from atom.models.checkpoint.gguf_types import FLOATS, GGUFType

if TYPE_CHECKING:
    import numpy as np

_RUN_ELEMENTS = 1 << 15
"""Elements decoded at a time: they stay in cache, and torch keeps so few on one thread. Thousands of small
steps spread over threads take ten to twenty times as long wherever other processes want the cores too."""

_Decoder = Callable[[torch.Tensor, torch.Tensor], None]


def dequantise(raw: np.ndarray, type_: GGUFType, out: torch.Tensor) -> None:
    """Decode the blocks of a tensor into `out`.

    Args:
        raw: uint8, the tensor's bytes in order; only read.
        type_: their format.
        out: contiguous, on the CPU, of any float dtype, with as many elements as `raw` has. Values are
            decoded in float32 and rounded once.
    """
    if type_.name in FLOATS:
        out.view(-1).copy_(_plain(raw, getattr(torch, FLOATS[type_.name])))
        return
    decode = _DECODERS.get(type_.name)
    blocks = raw.reshape(-1, type_.block_bytes)
    flat = out.view(-1, type_.block)
    run_blocks = min(len(blocks), max(1, _RUN_ELEMENTS // type_.block))
    # The run's bytes and its values; both are reused, so that only `out` costs memory.
    run_bytes = torch.empty((run_blocks, type_.block_bytes), dtype=torch.uint8)
    run_values = torch.empty((run_blocks, type_.block), dtype=torch.float32)
    for begin in range(0, len(blocks), run_blocks):
        run = blocks[begin : begin + run_blocks]
        target = flat[begin : begin + len(run)]
        values = target if out.dtype == torch.float32 else run_values[: len(run)]
        if decode is None:
            values.copy_(torch.from_numpy(_decode_with_gguf(run, type_)))
        else:
            bytes_ = run_bytes[: len(run)]
            bytes_.numpy()[...] = run
            decode(bytes_, values)
        if values is not target:
            target.copy_(values)


def _plain(raw: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    # A copy: torch warns of read-only memory, which the map is.
    return torch.from_numpy(raw.copy()).view(-1).view(dtype)


def _decode_with_gguf(blocks: np.ndarray, type_: GGUFType) -> np.ndarray:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    values: np.ndarray = dequantize(blocks, GGMLQuantizationType(type_.number))
    return values


def _half(blocks: torch.Tensor, begin: int) -> torch.Tensor:
    """The float16 at byte `begin` of every block, as float32 `[blocks, 1]`."""
    return blocks[:, begin : begin + 2].contiguous().view(torch.float16).float()


def _low_then_high(packed: torch.Tensor, values: torch.Tensor) -> None:
    """Unpack 16 bytes a block into 32 numbers: the low halves of all bytes, then the high ones."""
    halves = values.view(-1, 2, 16)
    halves[:, 0] = packed & 0x0F
    halves[:, 1] = packed >> 4


def _add_fifth_bit(blocks: torch.Tensor, begin: int, values: torch.Tensor) -> None:
    """Add 16 to each of a block's 32 numbers whose bit in the 4 bytes at `begin` is set."""
    bits = blocks[:, begin : begin + 4, None] >> torch.arange(8, dtype=torch.uint8)
    values.add_((bits & 1).view(-1, 32), alpha=16)


def _q4_0(blocks: torch.Tensor, values: torch.Tensor) -> None:
    _low_then_high(blocks[:, 2:], values)
    values.sub_(8).mul_(_half(blocks, 0))


def _q4_1(blocks: torch.Tensor, values: torch.Tensor) -> None:
    _low_then_high(blocks[:, 4:], values)
    values.mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: torch.Tensor, values: torch.Tensor) -> None:
    _low_then_high(blocks[:, 6:], values)
    _add_fifth_bit(blocks, 2, values)
    values.sub_(16).mul_(_half(blocks, 0))


def _q5_1(blocks: torch.Tensor, values: torch.Tensor) -> None:
    _low_then_high(blocks[:, 8:], values)
    _add_fifth_bit(blocks, 4, values)
    values.mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: torch.Tensor, values: torch.Tensor) -> None:
    values.copy_(blocks[:, 2:].view(torch.int8))
    values.mul_(_half(blocks, 0))


_DECODERS: dict[str, _Decoder] = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0}
