"""A weight stored tile after tile: one program of a skinny GEMM reads one unbroken stretch of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom.models.kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    import torch

__all__ = ["PackedWeight", "pack", "unpack"]


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight `[n, k]` as `tiles` `[n / block_n, k / block_k, block_n, block_k]`."""

    tiles: torch.Tensor
    n: int
    k: int
    block_n: int
    block_k: int


def pack(weight: torch.Tensor, block_n: int = 64, block_k: int = 128) -> PackedWeight:
    """A copy of `weight` `[n, k]` laid out tile after tile; `block_n` must divide n and `block_k` k."""
    n, k = weight.shape
    if n % block_n or k % block_k:
        raise KernelArgumentError(f"pack: tiles of {block_n} x {block_k} do not divide a weight of {n} x {k}")
    tiles = weight.reshape(n // block_n, block_n, k // block_k, block_k).transpose(1, 2).contiguous()
    return PackedWeight(tiles, n, k, block_n, block_k)


def unpack(packed: PackedWeight) -> torch.Tensor:
    """The `[n, k]` weight that was packed, as a new dense tensor."""
    return packed.tiles.transpose(1, 2).reshape(packed.n, packed.k)
