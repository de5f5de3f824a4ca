"""The compiled kernels, called with tensors. All are float32 on the CPU; shapes are the caller's to keep."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_POINTER, _SIZE, _REAL, _COUNT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "panel_width": (),
    "pack_panels": (*[_POINTER] * 2, *[_SIZE] * 3, _COUNT),
    "linear_float": (*[_POINTER] * 4, *[_SIZE] * 3, _COUNT),
    "linear_half": (*[_POINTER] * 4, *[_SIZE] * 3, _COUNT),
    "rms_norm": (*[_POINTER] * 5, *[_SIZE] * 2, _REAL, _COUNT),
    "silu_mul": (*[_POINTER] * 2, *[_SIZE] * 2, _COUNT),
    "rotate": (*[_POINTER] * 4, *[_SIZE] * 5, _COUNT),
    "has_head_dim": (_SIZE,),
    "paged_attention": (*[_POINTER] * 6, *[_SIZE] * 9, _REAL, _COUNT),
    "write_cache": (*[_POINTER] * 3, *[_SIZE] * 4),
}
_ANSWERING = ("panel_width", "has_head_dim", "paged_attention", "write_cache")
_SHARED_FROM = 1 << 15
"""Numbers above which threads share the work of a row-wise kernel; fewer are done before a thread wakes."""


class CpuKernels:
    """What `source/*.c` exports. A row's result never depends on the rows beside it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """
        Raises:
            AttributeError: the library lacks a kernel.
        """
        for name, arguments in _SIGNATURES.items():
            function: Callable[..., Any] = getattr(library, name)
            function.argtypes = arguments  # type: ignore[attr-defined]
            function.restype = _SIZE if name in _ANSWERING else None  # type: ignore[attr-defined]
        self._library = library
        self.panel_width: int = library.panel_width()

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """A weight `[out, in]` of float32 or float16 in panels `[panels, in, panel_width]`, padded with 0."""
        weight = weight.detach().contiguous()
        out_features, in_features = weight.shape
        panels = weight.new_empty((-(-out_features // self.panel_width), in_features, self.panel_width))
        sizes = (out_features, in_features, weight.element_size())
        self._library.pack_panels(weight.data_ptr(), panels.data_ptr(), *sizes, torch.get_num_threads())
        return panels

    def linear(
        self, x: torch.Tensor, panels: torch.Tensor, bias: torch.Tensor | None, out_features: int
    ) -> torch.Tensor:
        """`[rows, out_features]` of `[rows, in]` and a weight from `pack`."""
        x = x.contiguous()
        rows, in_features = x.shape
        y = x.new_empty((rows, out_features))
        run = self._library.linear_float if panels.dtype == torch.float32 else self._library.linear_half
        added = 0 if bias is None else bias.data_ptr()
        sizes = (rows, in_features, out_features)
        run(x.data_ptr(), panels.data_ptr(), added, y.data_ptr(), *sizes, torch.get_num_threads())
        return y

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """`x / sqrt(mean(x²) + eps) * weight` over the last dimension; same shape."""
        x = x.contiguous()
        y = torch.empty_like(x)
        self._rms_norm(x, 0, weight, y, 0, eps)
        return y

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`x + residual` normalised, and `x + residual`; both of the same shape."""
        x, residual = x.contiguous(), residual.contiguous()
        y, total = torch.empty_like(x), torch.empty_like(x)
        self._rms_norm(x, residual.data_ptr(), weight, y, total.data_ptr(), eps)
        return y, total

    def _rms_norm(
        self, x: torch.Tensor, residual: int, weight: torch.Tensor, y: torch.Tensor, total: int, eps: float
    ) -> None:
        size = x.shape[-1]
        pointers = (x.data_ptr(), residual, weight.data_ptr(), y.data_ptr(), total)
        self._library.rms_norm(*pointers, x.numel() // size, size, eps, _threads(x))

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """`silu(gate_up[:, :n]) * gate_up[:, n:]` of `[rows, 2n]`."""
        gate_up = gate_up.contiguous()
        rows, both = gate_up.shape
        y = gate_up.new_empty((rows, both // 2))
        self._library.silu_mul(gate_up.data_ptr(), y.data_ptr(), rows, both // 2, _threads(gate_up))
        return y

    def rotate(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """`[rows, heads, size]` turned by tables `[rows, 1, turning]`, the sine's first half negated."""
        if heads.stride()[1:] != (heads.shape[2], 1):
            heads = heads.contiguous()
        rows, count, size = heads.shape
        y = heads.new_empty(heads.shape)
        pointers = (heads.data_ptr(), cos.data_ptr(), sin.data_ptr(), y.data_ptr())
        sizes = (rows, count, size, cos.shape[-1], heads.stride(0))
        self._library.rotate(*pointers, *sizes, _threads(heads))
        return y

    def has_head_dim(self, head_dim: int) -> bool:
        """Whether `paged_attention` has a body for heads of `head_dim` numbers."""
        return bool(self._library.has_head_dim(head_dim))

    def paged_attention(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
        output: torch.Tensor,
        query_len: int,
        scale: float,
    ) -> None:
        """Attention of sequences with `query_len` rows each, into `output`.

        `query` and `output` `[seqs * query_len, heads, head_dim]`, caches `[blocks, block_size, kv_heads,
        head_dim]`, `block_tables` int32 `[seqs, width]`, `seq_lens` int32 `[seqs]` with this step's tokens.
        A row sees the tokens up to its own; one without any sees the first of its first block.

        Raises:
            IndexError: a table names a block that the cache does not have.
        """
        rows, heads, head_dim = query.shape
        if query.stride()[1:] != (head_dim, 1):
            query = query.contiguous()
        blocks, block_size, kv_heads, _ = k_cache.shape
        missing = self._library.paged_attention(
            *(query.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr()),
            *(block_tables.data_ptr(), seq_lens.data_ptr(), output.data_ptr()),
            *(rows // query_len, query_len, block_tables.stride(0), heads, kv_heads, head_dim),
            *(blocks, block_size, query.stride(0), scale, torch.get_num_threads()),
        )
        if missing >= 0:
            raise IndexError(f"block table: a block number is out of range, the cache has {blocks} blocks")

    def write_cache(self, cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
        """Row `i` of `rows` `[n, kv_heads, head_dim]` to slot `slots[i]` (int64) of a cache of blocks.

        Raises:
            IndexError: the cache has no such slot; nothing is written then.
        """
        _, count, size = rows.shape
        if rows.stride()[1:] != (size, 1):
            rows = rows.contiguous()
        total = cache.shape[0] * cache.shape[1]
        sizes = (slots.shape[0], count * size, rows.stride(0), total)
        wrong = self._library.write_cache(rows.data_ptr(), slots.data_ptr(), cache.data_ptr(), *sizes)
        if wrong >= 0:
            raise IndexError(f"slot index {int(slots[wrong])} is out of range, the cache has {total} slots")


def _threads(x: torch.Tensor) -> int:
    return 1 if x.numel() < _SHARED_FROM else torch.get_num_threads()
