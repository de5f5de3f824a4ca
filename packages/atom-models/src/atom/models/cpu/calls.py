"""Arguments of the compiled kernels, from tensors: float32 on the CPU, shapes are the caller's to keep.

A `Call` reads and writes the addresses that its tensors have: it can be made again as long as they live.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

_SHARED_FROM = 1 << 15
"""Numbers above which threads share the work of a row-wise kernel; fewer are done before a thread wakes."""


class Call(NamedTuple):
    """A kernel's name and its arguments."""

    kernel: str
    arguments: tuple[Any, ...]


def linear(x: torch.Tensor, panels: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor) -> Call:
    """`y` `[rows, out]` of contiguous `x` `[rows, in]`."""
    kernel = "linear_float" if panels.dtype == torch.float32 else "linear_half"
    pointers = (x.data_ptr(), panels.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr())
    return Call(kernel, (*pointers, x.shape[0], x.shape[1], y.shape[1], torch.get_num_threads()))


def rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    y: torch.Tensor,
    total: torch.Tensor | None,
) -> Call:
    """`y` of contiguous `x`, or of `x + residual`, which then goes to `total`."""
    size = x.shape[-1]
    before = 0 if residual is None else residual.data_ptr()
    after = 0 if total is None else total.data_ptr()
    pointers = (x.data_ptr(), before, weight.data_ptr(), y.data_ptr(), after)
    return Call("rms_norm", (*pointers, x.numel() // size, size, eps, _threads(x)))


def silu_mul(gate_up: torch.Tensor, y: torch.Tensor) -> Call:
    """`y` `[rows, n]` of contiguous `[rows, 2n]`."""
    return Call("silu_mul", (gate_up.data_ptr(), y.data_ptr(), y.shape[0], y.shape[1], _threads(gate_up)))


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, y: torch.Tensor) -> Call:
    """`y` of `heads` `[rows, heads, size]`, whose rows may lie apart."""
    rows, count, size = heads.shape
    pointers = (heads.data_ptr(), cos.data_ptr(), sin.data_ptr(), y.data_ptr())
    return Call("rotate", (*pointers, rows, count, size, cos.shape[-1], heads.stride(0), _threads(heads)))


def paged_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    output: torch.Tensor,
    query_len: int,
    scale: float,
) -> Call:
    """As `CpuKernels.paged_attention`; rows of `query` may lie apart."""
    rows, heads, head_dim = query.shape
    blocks, block_size, kv_heads, _ = k_cache.shape
    return Call(
        "paged_attention",
        (
            *(query.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr()),
            *(block_tables.data_ptr(), seq_lens.data_ptr(), output.data_ptr()),
            *(rows // query_len, query_len, block_tables.stride(0), heads, kv_heads, head_dim),
            *(blocks, block_size, query.stride(0), scale, torch.get_num_threads()),
        ),
    )


def write_cache(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> Call:
    """Row `i` of `rows` `[n, kv_heads, head_dim]`, which may lie apart, to slot `slots[i]`."""
    _, count, size = rows.shape
    sizes = (slots.shape[0], count * size, rows.stride(0), cache.shape[0] * cache.shape[1])
    return Call("write_cache", (rows.data_ptr(), slots.data_ptr(), cache.data_ptr(), *sizes))


def rows_apart(x: torch.Tensor) -> bool:
    """Whether a tensor of three dimensions is dense but for its rows."""
    return x.stride()[1:] == (x.shape[2], 1)


def _threads(x: torch.Tensor) -> int:
    return 1 if x.numel() < _SHARED_FROM else torch.get_num_threads()
