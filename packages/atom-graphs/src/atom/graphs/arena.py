"""A growing stretch of memory handed out in blocks that come back by themselves."""

from __future__ import annotations

import weakref
from bisect import bisect_right, insort
from dataclasses import dataclass, field

import torch

from atom.graphs.address import bytes_at, ordinary, over

ALIGNMENT = 64
"""What torch's own CPU allocator aligns to, so that kernels take the same path as in eager."""
MIN_CHUNK = 1 << 18


@dataclass
class _Chunk:
    memory: torch.Tensor
    start: int
    nbytes: int
    free: list[tuple[int, int]] = field(default_factory=list)
    """Free stretches as (address, bytes), by address, no two adjacent."""


class Arena:
    """First fit by address: what a smaller recording needs lies inside what a larger one left free."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._chunks: list[_Chunk] = []
        self._starts: list[int] = []
        self.maker = ""
        """Noted as the maker of each block placed from now on."""
        self.live: dict[int, str] = {}
        """Blocks somebody holds: address -> maker."""

    @property
    def reserved_bytes(self) -> int:
        return sum(chunk.nbytes for chunk in self._chunks)

    @property
    def used_bytes(self) -> int:
        return self.reserved_bytes - sum(n for chunk in self._chunks for _, n in chunk.free)

    def place(self, nbytes: int) -> torch.Tensor:
        """A uint8 tensor `[nbytes]`; its block comes back when the last tensor over its storage dies."""
        size = max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT
        chunk, address = self._take(size)
        with ordinary():
            tensor, life = bytes_at(address, max(nbytes, 1), self.device, chunk.memory)
        self.live[address] = self.maker
        weakref.finalize(life, _give_back, chunk.free, self.live, address, size).atexit = False
        return tensor[:nbytes]

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` by address alone if it lies here, so that it keeps no block; else itself."""
        chunk = None if tensor.numel() == 0 else self._chunk_of(tensor.data_ptr())
        if chunk is None:
            return tensor
        with ordinary():
            return over(chunk.memory, tensor.data_ptr() - chunk.start, tensor)

    def _take(self, size: int) -> tuple[_Chunk, int]:
        for chunk in self._chunks:
            for at, (address, free) in enumerate(chunk.free):
                if free >= size:
                    chunk.free[at : at + 1] = [(address + size, free - size)] if free > size else []
                    return chunk, address
        return self._grow(size)

    def _grow(self, size: int) -> tuple[_Chunk, int]:
        with ordinary():
            memory = torch.zeros(max(size, MIN_CHUNK), dtype=torch.uint8, device=self.device)
        chunk = _Chunk(memory, memory.data_ptr(), memory.numel())
        insort(self._chunks, chunk, key=lambda c: c.start)
        self._starts = [c.start for c in self._chunks]
        if chunk.nbytes > size:
            chunk.free.append((chunk.start + size, chunk.nbytes - size))
        return chunk, chunk.start

    def _chunk_of(self, address: int) -> _Chunk | None:
        at = bisect_right(self._starts, address) - 1
        if at >= 0 and address < self._chunks[at].start + self._chunks[at].nbytes:
            return self._chunks[at]
        return None


def _give_back(free: list[tuple[int, int]], live: dict[int, str], address: int, size: int) -> None:
    del live[address]
    insort(free, (address, size))
    at = bisect_right(free, (address, size)) - 1
    if at + 1 < len(free) and address + size == free[at + 1][0]:
        size += free.pop(at + 1)[1]
        free[at] = (address, size)
    if at > 0 and sum(free[at - 1]) == address:
        free[at - 1] = (free[at - 1][0], free[at - 1][1] + size)
        free.pop(at)
