"""The kernels of a model's forward as custom ops `atom_kernels::*`, one node each to Dynamo and to a
recorder.

Attention, cache writes and sampling have no op here: they run inside the attention op and outside the model.
"""
# no `from __future__ import annotations`: schemas are inferred from the annotations themselves

import torch
from torch.library import Library

from atom.compile import direct_register_custom_op
from atom.models.kernels.kernel_set import for_device

__all__ = ["kernels_lib"]

kernels_lib = Library("atom_kernels", "FRAGMENT")  # type: ignore[no-untyped-call]
"""The library of the ops."""


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return for_device(x.device.type).rms_norm(x, weight, eps)


def _rms_norm_fake(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x.new_empty(x.shape)


def _add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return for_device(x.device.type).add_rms_norm(x, residual, weight, eps)


def _add_rms_norm_fake(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), residual.new_empty(residual.shape)


def _silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    return for_device(gate_up.device.type).silu_mul(gate_up)


def _silu_mul_fake(gate_up: torch.Tensor) -> torch.Tensor:
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))


def _embedding(ids: torch.Tensor, table: torch.Tensor, vocab_start: int = 0) -> torch.Tensor:
    return for_device(table.device.type).embedding(ids, table, vocab_start)


def _embedding_fake(ids: torch.Tensor, table: torch.Tensor, vocab_start: int = 0) -> torch.Tensor:
    return table.new_empty((ids.shape[0], table.shape[1]))


def _rotary(
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    interleaved: bool = False,
) -> None:
    for_device(query.device.type).rotary(query, key, positions, cos_sin, interleaved=interleaved)


def _linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    tiles: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    norm_weight: torch.Tensor | None = None,
    eps: float = 0.0,
    silu: bool = False,
) -> torch.Tensor:
    return for_device(x.device.type).linear(
        x, weight, tiles=tiles, bias=bias, residual=residual, norm_weight=norm_weight, eps=eps, silu=silu
    )


def _linear_fake(
    x: torch.Tensor,
    weight: torch.Tensor,
    tiles: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    norm_weight: torch.Tensor | None = None,
    eps: float = 0.0,
    silu: bool = False,
) -> torch.Tensor:
    return x.new_empty((x.shape[0], weight.shape[0] // 2 if silu else weight.shape[0]))


direct_register_custom_op("rms_norm", _rms_norm, [], _rms_norm_fake, kernels_lib)
direct_register_custom_op("add_rms_norm", _add_rms_norm, [], _add_rms_norm_fake, kernels_lib)
direct_register_custom_op("silu_mul", _silu_mul, [], _silu_mul_fake, kernels_lib)
direct_register_custom_op("embedding", _embedding, [], _embedding_fake, kernels_lib)
direct_register_custom_op("rotary", _rotary, ["query", "key"], None, kernels_lib)
direct_register_custom_op("linear", _linear, [], _linear_fake, kernels_lib)
