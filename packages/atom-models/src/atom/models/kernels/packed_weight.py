"""A weight stored tile after tile: one program of a skinny GEMM reads one unbroken stretch of memory.

A packed weight is a plain tensor `[n / block_n, k / block_k, block_n, block_k]`; its shape says all about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom.models.kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    import torch

__all__ = ["pack", "unpack"]


def pack(weight: torch.Tensor, block_n: int = 64, block_k: int = 128) -> torch.Tensor:
    """A copy of `weight` `[n, k]` laid out in tiles; `block_n` must divide n and `block_k` k."""
    n, k = weight.shape
    if n % block_n or k % block_k:
        raise KernelArgumentError(f"pack: tiles of {block_n} x {block_k} do not divide a weight of {n} x {k}")
    return weight.reshape(n // block_n, block_n, k // block_k, block_k).transpose(1, 2).contiguous()


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """The dense `[n, k]` weight that was packed."""
    rows_of_tiles, columns_of_tiles, block_n, block_k = packed.shape
    return packed.transpose(1, 2).reshape(rows_of_tiles * block_n, columns_of_tiles * block_k)
