"""The memory that recordings share: one pool a process and device.

What a recording allocates is free again, for the next recording, as soon as the model lets go of it: replay
keeps the order of the recording, and no two recordings are in use at once, so nothing is overwritten before
it was read. Nothing outside the pool can take its blocks. Recorded largest first, a ladder of buckets costs
what its largest recording costs.
"""

from __future__ import annotations

from bisect import bisect_right
from threading import get_ident
from typing import Any, Protocol

import torch

from atom.graphs.address import bytes_at, ordinary, over
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
        self._anchor = self._hold()
        self._segments: list[tuple[int, int, torch.Tensor]] = []
        """The allocator's segments by address: (first byte, past the last, its memory as uint8)."""
        self._starts: list[int] = []
        self._grown = -1
        self._outside: set[int] = set()
        """Addresses known to lie elsewhere."""
        self._prepared: set[int] = set()

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def id(self) -> Any:
        return self._pool.id

    def nbytes(self) -> int:
        return sum(segment["total_size"] for segment in self._snapshot())

    def place(self, nbytes: int) -> torch.Tensor:
        with torch.cuda.use_mem_pool(self._pool, self._device):
            return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() == 0 or tensor.device != self._device:
            return tensor
        address = tensor.data_ptr()
        if address in self._outside:
            return tensor
        found = self._containing(address)
        if found is None:
            # Segments are never given back, so what lies elsewhere while somebody holds it stays elsewhere;
            # a stale entry costs a block held too long, never a dangling address.
            self._outside.add(address)
            return tensor
        start, _, memory = found
        with ordinary():
            return over(memory, address - start, tensor)

    def prepare_thread(self) -> None:
        """Lets this thread record on the capture stream, which is current, even if it never computed before.

        A capture cannot create the matrix library's handle. Its workspace for the capture stream goes to the
        pool: were it outside, whoever clears the workspaces would take it from under the recordings.
        """
        if get_ident() not in self._prepared:
            with torch.cuda.use_mem_pool(self._pool, self._device):
                torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]
            self._prepared.add(get_ident())

    def _containing(self, address: int) -> tuple[int, int, torch.Tensor] | None:
        found = self._look_up(address)
        if found is None:
            # Walking the allocator's segments takes milliseconds: only if there are new ones.
            grown = torch.cuda.memory_stats_as_nested_dict(self._device)["segment"]["all"]["allocated"]
            if grown != self._grown:
                self._refresh()
                self._grown = grown
                found = self._look_up(address)
        return found

    def _look_up(self, address: int) -> tuple[int, int, torch.Tensor] | None:
        at = bisect_right(self._starts, address) - 1
        return self._segments[at] if at >= 0 and address < self._segments[at][1] else None

    def _refresh(self) -> None:
        known = set(self._starts)
        for segment in self._snapshot():
            start, nbytes = segment["address"], segment["total_size"]
            if start not in known:
                with ordinary():
                    memory, _ = bytes_at(start, nbytes, self._device, self._pool)
                self._segments.append((start, start + nbytes, memory))
        self._segments.sort(key=lambda s: s[0])
        self._starts = [start for start, _, _ in self._segments]

    def _snapshot(self) -> list[dict[str, Any]]:
        mine = self._pool.id
        every: list[dict[str, Any]] = torch.cuda.memory_snapshot(mine)  # type: ignore[no-untyped-call]
        return [s for s in every if tuple(s["segment_pool_id"]) == tuple(mine)]

    def _hold(self) -> torch.cuda.CUDAGraph:
        """A graph of next to nothing, kept for ever.

        torch drops its pinned-memory side of a pool with the last graph recorded into it, and then refuses to
        record into that pool again.
        """
        graph = torch.cuda.CUDAGraph()
        flag = torch.zeros(1, device=self._device)
        self.stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.device(self._device), torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.id, capture_error_mode="thread_local")
            flag.zero_()
            graph.capture_end()
        return graph


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
