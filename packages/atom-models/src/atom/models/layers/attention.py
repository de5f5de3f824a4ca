"""Attention over a paged cache, as a layer and as the op `aiter.unified_attention_with_output`."""

from __future__ import annotations

import torch
from torch import nn

from atom.compile import direct_register_custom_op
from atom.compile.split import mark_spliting_op
from atom.config import CacheSpec
from atom.graphs import eager_region
from atom.graphs.forward_context import AttentionMetaData, KVCacheTensor, get_forward_context
from atom.models.layers.attention_metadata import TorchAttentionMetaData
from atom.models.layers.attention_paged import has_paged_kernel, paged_bucket_attention
from atom.models.layers.attention_plan import RaggedPlan, plan_ragged
from atom.models.layers.attention_torch import bucket_attention, ragged_attention, write_cache
from atom.models.layers.errors import AttentionSetupError, LayerArgumentError


class Attention(nn.Module):
    """Causal attention of grouped query heads over the layer's paged cache.

    It has no weights. The step's forward context brings metadata, caches, and this layer itself, which the
    op finds by `layer_id`.
    """

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        layer_id: int,
        layer_name: str,
        scale: float | None = None,
    ) -> None:
        """`layer_name` names the cache; `scale` multiplies the scores, `head_dim ** -0.5` when left out.

        Raises:
            LayerArgumentError: the heads do not share the key heads evenly.
        """
        super().__init__()
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            raise LayerArgumentError(f"{num_heads} query heads cannot share {num_kv_heads} key heads evenly")
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.layer_id = layer_id
        self.layer_name = layer_name
        self.scale = head_dim**-0.5 if scale is None else scale

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """`[rows, heads * head_dim]`.

        `query` is `[rows, heads, head_dim]`, `key` and `value` are `[rows, kv_heads, head_dim]`.
        """
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        torch.ops.aiter.unified_attention_with_output(query, key, value, output, self.layer_id)
        return output.view(-1, self.num_heads * self.head_dim)

    def cache_spec(self, dtype: str) -> list[CacheSpec]:
        """Its two paged tensors, "k" and "v", of rows `[kv_heads, head_dim]`."""
        shape = (self.num_kv_heads, self.head_dim)
        return [CacheSpec(self.layer_name, name, "paged", shape, dtype) for name in ("k", "v")]


def unified_attention_with_output(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor, layer_id: int
) -> None:
    """Write the step's keys and values to the cache, attend, and put the result into `output`.

    With a request bucket in the metadata the bucket-fixed body runs, else the ragged one. Outside of a step,
    when shapes are traced, `output` becomes zero.

    Raises:
        AttentionSetupError: the forward context knows no such layer, or no cache for it.
    """
    context = get_forward_context()
    metadata = context.attn_metadata
    if metadata is None:
        output.zero_()
        return
    layer = context.no_compile_layers.get(layer_id)
    if layer is None:
        known = ", ".join(map(str, context.no_compile_layers)) or "none"
        raise AttentionSetupError(
            f"attention layer {layer_id} is not in the forward context, which has {known}"
        )
    if isinstance(metadata, dict):
        metadata = metadata[layer.layer_name]
    cache = _cache_of(layer, context.kv_cache_data)
    k_cache, v_cache = cache.k_cache, cache.v_cache
    write_cache(k_cache, key, metadata.slot_mapping)
    write_cache(v_cache, value, metadata.slot_mapping)
    paged = has_paged_kernel(query, k_cache)
    if metadata.request_bucket is not None:
        body = paged_bucket_attention if paged else bucket_attention
        body(query, k_cache, v_cache, output, metadata=metadata, scale=layer.scale)
        return
    plan = _plan_of(metadata, block_size=k_cache.shape[1], dtype=query.dtype, paged=paged)
    ragged_attention(query, key, value, k_cache, v_cache, output, plan=plan, scale=layer.scale)


def _cache_of(layer: Attention, caches: dict[str, KVCacheTensor]) -> KVCacheTensor:
    cache = caches.get(layer.layer_name)
    if cache is None:
        raise AttentionSetupError(
            f"attention layer {layer.layer_name!r} has no cache: allocate one for each of kv_cache_spec()"
        )
    return cache


def _plan_of(metadata: AttentionMetaData, *, block_size: int, dtype: torch.dtype, paged: bool) -> RaggedPlan:
    if isinstance(metadata, TorchAttentionMetaData):
        return metadata.plan(block_size=block_size, dtype=dtype, paged=paged)
    return plan_ragged(metadata, block_size=block_size, dtype=dtype, paged=paged)


# Launches of the bucket-fixed body follow from the bucket, so that a request graph may hold the op whole; a
# token graph breaks at it, and a compiler cuts there.
direct_register_custom_op(
    "unified_attention_with_output",
    eager_region(unified_attention_with_output, bucket_fixed=True),
    mutates_args=["output"],
)
mark_spliting_op("aiter.unified_attention_with_output")
