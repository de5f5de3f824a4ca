"""Copies of tensors inside the pool, with the layout they had outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom.graphs.address import ordinary, over
from atom.graphs.structure import span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom.graphs.pool import GraphPool

ALIGNMENT = 64


class Placement:
    """Places tensors in a pool; those that overlap where they come from overlap there as well."""

    def __init__(self, pool: GraphPool, tensors: Sequence[torch.Tensor]) -> None:
        self._pool = pool
        self._sharing: dict[int, list[torch.Tensor]] = {}
        for t in tensors:
            self._sharing.setdefault(t.untyped_storage()._cdata, []).append(t)
        self._blocks: dict[int, tuple[torch.Tensor, int]] = {}

    def held_elsewhere(self, tensor: torch.Tensor) -> bool:
        """Whether anybody but the given tensors holds the storage: it is a buffer then, no new result."""
        storage = tensor.untyped_storage()
        ours = len({id(t) for t in self._sharing[storage._cdata]})
        # One further reference is the Python object of the storage itself.
        return int(torch._C._storage_Use_Count(storage._cdata)) > ours + 1

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of `tensor` that owns its place in the pool; strides are kept where they can be written."""
        with ordinary():
            if any(n > 1 and stride == 0 for n, stride in zip(tensor.size(), tensor.stride(), strict=True)):
                dense = torch.empty(tensor.size(), dtype=tensor.dtype, device="meta")
                placed = over(self._pool.place(span(dense)), 0, dense)
            else:
                block, low = self._block(tensor)
                placed = over(block, tensor.data_ptr() - low, tensor)
            with torch.no_grad():
                return placed.copy_(tensor)

    def _block(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        key = tensor.untyped_storage()._cdata
        if key not in self._blocks:
            sharing = self._sharing[key]
            low = min(t.data_ptr() for t in sharing) // ALIGNMENT * ALIGNMENT
            high = max(t.data_ptr() + span(t) for t in sharing)
            self._blocks[key] = self._pool.place(high - low), low
        return self._blocks[key]
