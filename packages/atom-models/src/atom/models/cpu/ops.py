"""The kernels as operations of torch, for whatever writes operations down; else they are called at once.

Dispatching an operation costs more than most of the kernels take, so that only a dispatch mode, such as the
tape recorder's, sees `aiter.cpu_*`. A compiler is given torch's own operations by the layers, and
fuses those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from atom.compile import direct_register_custom_op
from atom.graphs import bind_replays
from atom.models.cpu import calls
from atom.models.cpu.build import cpu_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atom.models.cpu.calls import Call
    from atom.models.cpu.kernels import CpuKernels


def has_kernel(x: torch.Tensor) -> bool:
    """Whether the kernels take `x`: float32 on a CPU, outside of a compiler."""
    if not x.is_cpu or x.dtype is not torch.float32 or torch.compiler.is_compiling():
        return False
    return cpu_kernels() is not None


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`CpuKernels.rms_norm`."""
    if _written_down():
        return torch.ops.aiter.cpu_rms_norm(x, weight, eps)  # type: ignore[no-any-return]
    return _kernels().rms_norm(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`CpuKernels.add_rms_norm`."""
    if _written_down():
        return torch.ops.aiter.cpu_add_rms_norm(x, residual, weight, eps)  # type: ignore[no-any-return]
    return _kernels().add_rms_norm(x, residual, weight, eps)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`CpuKernels.silu_mul`."""
    if _written_down():
        return torch.ops.aiter.cpu_silu_mul(gate_up)  # type: ignore[no-any-return]
    return _kernels().silu_mul(gate_up)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`CpuKernels.rotate`."""
    if _written_down():
        return torch.ops.aiter.cpu_rotate(heads, cos, sin)  # type: ignore[no-any-return]
    return _kernels().rotate(heads, cos, sin)


def paged_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    output: torch.Tensor,
    query_len: int,
    scale: float,
) -> None:
    """`CpuKernels.paged_attention`."""
    arguments = (query, k_cache, v_cache, block_tables, seq_lens, output, query_len, scale)
    if _written_down():
        torch.ops.aiter.cpu_paged_attention(*arguments)
    else:
        _kernels().paged_attention(*arguments)


def write_cache(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
    """`CpuKernels.write_cache`."""
    if _written_down():
        torch.ops.aiter.cpu_write_cache(cache, rows, slots)
    else:
        _kernels().write_cache(cache, rows, slots)


def _written_down() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0


def _kernels() -> CpuKernels:
    kernels = cpu_kernels()
    assert kernels is not None, "layers ask for the kernels before they use them"
    return kernels


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _kernels().rms_norm(x, weight, eps)


def _add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return _kernels().add_rms_norm(x, residual, weight, eps)


def _silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    return _kernels().silu_mul(gate_up)


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return _kernels().rotate(heads, cos, sin)


def _paged_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    output: torch.Tensor,
    query_len: int,
    scale: float,
) -> None:
    _kernels().paged_attention(query, k_cache, v_cache, block_tables, seq_lens, output, query_len, scale)


def _write_cache(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
    _kernels().write_cache(cache, rows, slots)


def _like(x: torch.Tensor, *_: object) -> torch.Tensor:
    return x.new_empty(x.shape)


def _two_like(x: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _half_of(gate_up: torch.Tensor) -> torch.Tensor:
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))


for _name, _run, _mutated, _fake in (
    ("cpu_rms_norm", _rms_norm, [], _like),
    ("cpu_add_rms_norm", _add_rms_norm, [], _two_like),
    ("cpu_silu_mul", _silu_mul, [], _half_of),
    ("cpu_rotate", _rotate, [], _like),
    ("cpu_paged_attention", _paged_attention, ["output"], None),
    ("cpu_write_cache", _write_cache, ["cache"], None),
):
    direct_register_custom_op(_name, _run, mutates_args=_mutated, fake_impl=_fake, dispatch_key="CPU")


def _bind(name: str, make: Callable[[tuple[Any, ...], Sequence[torch.Tensor]], Call | None]) -> None:
    def binder(args: tuple[Any, ...], results: Sequence[torch.Tensor]) -> Callable[[], None] | None:
        call = make(args, results)
        return None if call is None else _kernels().repeatable(call)

    bind_replays(getattr(torch.ops.aiter, name).default, binder)


def _dense(*tensors: torch.Tensor) -> bool:
    return all(x.is_contiguous() for x in tensors)


_bind(
    "cpu_rms_norm",
    lambda a, out: calls.rms_norm(a[0], None, a[1], a[2], out[0], None) if _dense(a[0], *out) else None,
)
_bind(
    "cpu_add_rms_norm",
    lambda a, out: calls.rms_norm(*a, *out) if _dense(a[0], a[1], *out) else None,
)
_bind("cpu_silu_mul", lambda a, out: calls.silu_mul(a[0], out[0]) if _dense(a[0], *out) else None)
_bind(
    "cpu_rotate",
    lambda a, out: (
        calls.rotate(a[0], a[1], a[2], out[0]) if calls.rows_apart(a[0]) and _dense(*a[1:], *out) else None
    ),
)
_bind("cpu_paged_attention", lambda a, _: calls.paged_attention(*a) if calls.rows_apart(a[0]) else None)
_bind("cpu_write_cache", lambda a, _: calls.write_cache(*a) if calls.rows_apart(a[1]) else None)
