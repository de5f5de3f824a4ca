"""What every attention launch takes, checked in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom.models.kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    import torch


def check_attention(
    query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, out: torch.Tensor
) -> None:
    """Refuse shapes and layouts no attention launch could be right for."""
    heads, head_dim = query.shape[1:]
    if k_cache.shape != v_cache.shape or k_cache.shape[3] != head_dim or heads % k_cache.shape[2]:
        raise KernelArgumentError(
            f"attention: caches {tuple(k_cache.shape)} and {tuple(v_cache.shape)} do not fit {heads} query "
            f"heads: want [num_blocks, block_size, kv_heads, {head_dim}] with kv_heads dividing {heads}"
        )
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise KernelArgumentError("attention: the caches must be dense")
    for name, tensor in (("query", query), ("out", out)):
        dense = tensor.stride(2) == 1 and (heads == 1 or tensor.stride(1) == head_dim)
        if tensor.shape != query.shape or not dense:
            raise KernelArgumentError(
                f"attention: {name} must be {tuple(query.shape)} with dense heads, got {tuple(tensor.shape)} "
                f"with strides {tensor.stride()}"
            )
