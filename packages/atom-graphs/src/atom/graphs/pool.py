"""The memory that recordings share: one pool a process and device.

What a recording allocates is free again, for the next recording, as soon as the model lets go of it: replay
keeps the order of the recording, and no two recordings are in use at once, so nothing is overwritten before
it was read. Nothing outside the pool can take its blocks. Recorded largest first, a ladder of buckets costs
what its largest recording costs.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Protocol

import torch

from atom.graphs.address import tensor_at
from atom.graphs.arena import Arena


class GraphPool(Protocol):
    """Memory at addresses that stay valid for the life of the process."""

    @property
    def device(self) -> torch.device: ...

    @property
    def id(self) -> Any:
        """What `torch.cuda.graph(pool=...)` takes; on other devices a number."""

    def nbytes(self) -> int:
        """Bytes the pool holds, in use or not."""

    def place(self, nbytes: int) -> torch.Tensor:
        """A new uint8 tensor `[nbytes]` that owns its block: once nobody holds it, the block is free."""

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` by address alone, holding no block, if it lies in the pool; otherwise `tensor` itself."""


class ArenaPool:
    """The tape's pool: an arena with the promises, and the dangers, of a device graph's private pool."""

    def __init__(self, device: torch.device) -> None:
        self.arena = Arena(device)

    @property
    def device(self) -> torch.device:
        return self.arena.device

    @property
    def id(self) -> int:
        return id(self.arena)

    def nbytes(self) -> int:
        return self.arena.reserved_bytes

    def place(self, nbytes: int) -> torch.Tensor:
        return self.arena.place(nbytes)

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.arena.view(tensor)


class CUDAPool:
    """A private pool of the device's caching allocator, shared by every segment recorded on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._pool = torch.cuda.MemPool()
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        """The stream every recording is captured on: the allocator keeps a pool's blocks by stream."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._seen_growth = -1

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def id(self) -> tuple[int, int]:
        return self._pool.id

    def nbytes(self) -> int:
        return sum(segment["total_size"] for segment in self._segments())

    def place(self, nbytes: int) -> torch.Tensor:
        with torch.cuda.use_mem_pool(self._pool, self._device):
            return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        address = tensor.data_ptr()
        if tensor.numel() == 0 or not self._holds(address):
            return tensor
        return tensor_at(address, tensor, owner=self._pool)

    def _holds(self, address: int) -> bool:
        # Walking the allocator's segments takes milliseconds; they only ever grow, so look again after
        # growth.
        growth = torch.cuda.memory_stats(self._device).get("segment.all.allocated", 0)
        if growth != self._seen_growth:
            spans = sorted((s["address"], s["address"] + s["total_size"]) for s in self._segments())
            self._starts, self._ends = [a for a, _ in spans], [b for _, b in spans]
            self._seen_growth = growth
        at = bisect_right(self._starts, address) - 1
        return at >= 0 and address < self._ends[at]

    def _segments(self) -> list[dict[str, Any]]:
        mine = self._pool.id
        every: list[dict[str, Any]] = torch.cuda.memory_snapshot(mine)  # type: ignore[no-untyped-call]
        return [s for s in every if tuple(s["segment_pool_id"]) == tuple(mine)]


def with_index(device: torch.device) -> torch.device:
    """`device` with its index: `cuda` is the current CUDA device."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


_cuda_pools: dict[torch.device, CUDAPool] = {}
_arena_pools: dict[torch.device, ArenaPool] = {}


def graph_pool(device: torch.device | str | None = None) -> GraphPool:
    """The pool that every recording on `device` shares; None is the current CUDA device, or else the CPU."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = with_index(torch.device(device))
    return cuda_pool(device) if device.type == "cuda" else arena_pool(device)


def cuda_pool(device: torch.device) -> CUDAPool:
    """`graph_pool` on a CUDA or HIP device."""
    if device not in _cuda_pools:
        _cuda_pools[device] = CUDAPool(device)
    return _cuda_pools[device]


def arena_pool(device: torch.device) -> ArenaPool:
    """The tape's pool on `device`: `graph_pool` itself wherever the tape is the default recorder."""
    if device not in _arena_pools:
        _arena_pools[device] = ArenaPool(device)
    return _arena_pools[device]
