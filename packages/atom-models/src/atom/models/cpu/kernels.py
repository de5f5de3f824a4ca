"""The compiled kernels, called with tensors. All are float32 on the CPU; shapes are the caller's to keep."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from atom.models.cpu import calls

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom.models.cpu.calls import Call

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
_OUT_OF_RANGE = {
    "paged_attention": "block table: a block number is out of range, the cache does not have it",
    "write_cache": "slot mapping: an index is out of range, the cache does not have the slot",
}
"""Kernels that return -1 if all went well, and what it means that they do not."""


class CpuKernels:
    """What `source/*.c` exports. A row's result never depends on the rows beside it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """
        Raises:
            AttributeError: the library lacks a kernel.
        """
        self._functions: dict[str, Callable[..., Any]] = {}
        for name, arguments in _SIGNATURES.items():
            function: Any = getattr(library, name)
            function.argtypes = arguments
            function.restype = _SIZE if name in _ANSWERING else None
            self._functions[name] = function
        self.panel_width: int = self._functions["panel_width"]()

    def run(self, call: Call) -> None:
        """
        Raises:
            IndexError: a block or slot that the cache does not have.
        """
        answer = self._functions[call.kernel](*call.arguments)
        if answer is not None and answer >= 0:
            raise IndexError(_OUT_OF_RANGE[call.kernel])

    def repeatable(self, call: Call) -> Callable[[], None]:
        """`run` of `call`, for many times: its arguments are converted once."""
        function = self._functions[call.kernel]
        converted = [kind(x) for kind, x in zip(_SIGNATURES[call.kernel], call.arguments, strict=True)]
        bound: Callable[[], Any] = partial(function, *converted)
        if call.kernel not in _OUT_OF_RANGE:
            return bound

        def checked() -> None:
            if bound() >= 0:
                raise IndexError(_OUT_OF_RANGE[call.kernel])

        return checked

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """A weight `[out, in]` of float32 or float16 in panels `[panels, in, panel_width]`, padded with 0."""
        weight = weight.detach().contiguous()
        out_features, in_features = weight.shape
        panels = weight.new_empty((-(-out_features // self.panel_width), in_features, self.panel_width))
        sizes = (out_features, in_features, weight.element_size(), torch.get_num_threads())
        self._functions["pack_panels"](weight.data_ptr(), panels.data_ptr(), *sizes)
        return panels

    def linear(
        self, x: torch.Tensor, panels: torch.Tensor, bias: torch.Tensor | None, out_features: int
    ) -> torch.Tensor:
        """`[rows, out_features]` of `[rows, in]` and a weight from `pack`.

        Raises:
            ValueError: `x` is of another width or number format than the weight was packed for.
        """
        if x.dtype is not torch.float32 or x.dim() != 2 or x.shape[1] != panels.shape[1]:
            raise ValueError(f"a product of float32 [rows, {panels.shape[1]}], not {x.dtype} {list(x.shape)}")
        x = x.contiguous()
        y = x.new_empty((x.shape[0], out_features))
        self.run(calls.linear(x, panels, bias, y))
        return y

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """`x / sqrt(mean(x²) + eps) * weight` over the last dimension; same shape.

        Raises:
            ValueError: `weight` is not float32, or of another width.
        """
        _check_norm(x, weight)
        x = x.contiguous()
        y = torch.empty_like(x)
        self.run(calls.rms_norm(x, None, weight, eps, y, None))
        return y

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`x + residual` normalised, and `x + residual`; both of the same shape.

        Raises:
            ValueError: see `rms_norm`; or the two are no equals.
        """
        _check_norm(x, weight)
        if residual.shape != x.shape or residual.dtype is not x.dtype:
            raise ValueError(f"{list(x.shape)} with a residual {residual.dtype} {list(residual.shape)}")
        x, residual = x.contiguous(), residual.contiguous()
        y, total = torch.empty_like(x), torch.empty_like(x)
        self.run(calls.rms_norm(x, residual, weight, eps, y, total))
        return y, total

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """`silu(gate_up[:, :n]) * gate_up[:, n:]` of `[rows, 2n]`."""
        gate_up = gate_up.contiguous()
        y = gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
        self.run(calls.silu_mul(gate_up, y))
        return y

    def rotate(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """`[rows, heads, size]` turned by tables `[rows, 1, turning]`, the sine's first half negated."""
        heads = heads if calls.rows_apart(heads) else heads.contiguous()
        y = heads.new_empty(heads.shape)
        self.run(calls.rotate(heads, cos.contiguous(), sin.contiguous(), y))
        return y

    def has_head_dim(self, head_dim: int) -> bool:
        """Whether `paged_attention` has a body for heads of `head_dim` numbers."""
        return bool(self._functions["has_head_dim"](head_dim))

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
            IndexError: a table names a block that the cache does not have, or is too short.
            ValueError: tables or lengths are not int32.
        """
        if block_tables.dtype is not torch.int32 or seq_lens.dtype is not torch.int32:
            raise ValueError(
                f"block tables and lengths are int32, not {block_tables.dtype}, {seq_lens.dtype}"
            )
        query = query if calls.rows_apart(query) else query.contiguous()
        chosen = (k_cache, v_cache, block_tables, seq_lens)
        self.run(calls.paged_attention(query, *chosen, output, query_len, scale))

    def write_cache(self, cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
        """Row `i` of `rows` `[n, kv_heads, head_dim]` to slot `slots[i]` (int64) of a cache of blocks.

        Raises:
            IndexError: the cache has no such slot; nothing is written then.
        """
        rows = rows if calls.rows_apart(rows) else rows.contiguous()
        self.run(calls.write_cache(cache, rows, slots))


def _check_norm(x: torch.Tensor, weight: torch.Tensor) -> None:
    if weight.dtype is not torch.float32 or weight.shape != x.shape[-1:]:
        raise ValueError(f"a norm of {list(x.shape)} by a weight {weight.dtype} {list(weight.shape)}")
