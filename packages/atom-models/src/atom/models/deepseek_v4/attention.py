"""Attention of DeepSeek-V4: low-rank queries, one key that is also the value, compressed history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

import atom.models.deepseek_v4.compress_launch
import atom.models.deepseek_v4.sparse_attention  # noqa: F401  registers the ops
from atom.config import CacheSpec
from atom.models.deepseek_v4.compressor import Compressor
from atom.models.deepseek_v4.grouped_linear import GroupedLinear
from atom.models.deepseek_v4.index_format import IndexCacheType, IndexFormat, index_format
from atom.models.deepseek_v4.indexer import Indexer
from atom.models.deepseek_v4.rope import InterleavedRotary, rotate_trailing
from atom.models.layers.linear import Linear
from atom.models.layers.norm import RMSNorm

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom.models.deepseek_v4.config import DeepseekV4Config
    from atom.models.layers.rotary import CosSin


class DeepseekV4Attention(nn.Module):
    """One attention sub-layer.

    The step's forward context brings metadata, caches, and this layer itself, which ops find by `layer_id`.
    """

    def __init__(
        self,
        config: DeepseekV4Config,
        rotary: InterleavedRotary,
        *,
        layer_id: int,
        prefix: str,
        index_cache: IndexCacheType,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.layer_id, self.layer_name = layer_id, prefix
        self.kind, self.ratio = config.layer_kinds[layer_id], config.ratio(layer_id)
        self.window, self.scale = config.sliding_window, config.head_dim**-0.5
        self.heads, self.head_dim, self.eps = config.num_attention_heads, config.head_dim, config.rms_norm_eps
        self.groups = config.o_groups
        hidden, eps = config.hidden_size, config.rms_norm_eps
        where: dict[str, Any] = {"dtype": dtype, "device": device}
        self.q_a_proj = Linear(hidden, config.q_lora_rank, **where)
        self.q_a_norm = RMSNorm(config.q_lora_rank, eps, **where)
        self.q_b_proj = Linear(config.q_lora_rank, self.heads * self.head_dim, **where)
        self.kv_proj = Linear(hidden, self.head_dim, **where)
        self.kv_norm = RMSNorm(self.head_dim, eps, **where)
        group_width = self.heads // self.groups * self.head_dim
        self.o_a_proj = GroupedLinear(self.groups, group_width, config.o_lora_rank, **where)
        self.o_b_proj = Linear(self.groups * config.o_lora_rank, hidden, **where)
        self.sinks = nn.Parameter(
            torch.empty(self.heads, dtype=torch.float32, device=device), requires_grad=False
        )
        self.compressor: Compressor | None = None
        self.indexer: Indexer | None = None
        if self.kind != "sliding":
            self.compressor = Compressor(
                hidden,
                self.head_dim,
                self.ratio,
                overlap=self.kind == "sparse",
                eps=eps,
                rotary=rotary,
                **where,
            )
        if self.kind == "sparse":
            self.indexer = Indexer(
                config,
                rotary,
                layer_id=layer_id,
                breaks=index_cache == "fp4",
                max_entries=-(-max_model_len // self.ratio),
                **where,
            )
        self.index_format: IndexFormat = index_format(index_cache, config.index_head_dim, dtype)

    @property
    def compressors(self) -> dict[str, Compressor]:
        """Compressors by the name of the cache that their entries go to."""
        found: dict[str, Compressor] = {}
        if self.compressor is not None:
            found["entries"] = self.compressor
        if self.indexer is not None:
            found["index_keys"] = self.indexer.compressor
        return found

    @property
    def encoders(self) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
        """How entries are put into caches that do not hold plain numbers."""
        return {"index_keys": self.index_format.encode}

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, cos_sin: CosSin
    ) -> torch.Tensor:
        """`[rows, hidden]` of normed `[rows, hidden]`.

        `rows` is from `v4_step_rows`, `cos_sin` from the rotary embedding of this kind of layer.
        """
        fence = torch.empty(1, dtype=torch.float32, device=x.device)
        if self.compressor is not None:
            torch.ops.aiter.v4_attn_compress_launch(x, positions, rows, fence, self.layer_id)
        q_latent = self.q_a_norm(self.q_a_proj(x))
        query = self.q_b_proj(q_latent).view(-1, self.heads, self.head_dim)
        query = rotate_trailing(F.rms_norm(query, (self.head_dim,), eps=self.eps), cos_sin)
        kv = rotate_trailing(self.kv_norm(self.kv_proj(x)), cos_sin)
        attended = self._sparse_attention(x, q_latent, query, kv, positions, rows, cos_sin, fence)
        attended = rotate_trailing(attended, cos_sin, backwards=True)
        return self.o_b_proj(self.o_a_proj(attended.view(attended.shape[0], self.groups, -1)))  # type: ignore[no-any-return]

    def _sparse_attention(
        self,
        x: torch.Tensor,
        q_latent: torch.Tensor,
        query: torch.Tensor,
        kv: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        cos_sin: CosSin,
        fence: torch.Tensor,
    ) -> torch.Tensor:
        """Join the compressors, pick entries, attend: `[rows, heads, head_dim]`.

        The join comes first: the index scores read keys of this step, and a recorded segment may not end
        with a side stream at work.
        """
        picks = None
        if self.compressor is not None:
            torch.ops.aiter.v4_attn_compress_join(x, fence, self.layer_id)
        if self.indexer is not None:
            picks = self.indexer(x, q_latent, positions, rows, cos_sin, fence)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        torch.ops.aiter.v4_sparse_attention(query, kv, positions, rows, picks, fence, output, self.layer_id)
        return output

    def cache_spec(self, dtype: str, spare_rows: int) -> list[CacheSpec]:
        """Its caches; `spare_rows` more in each ring than a step without drafts needs."""
        name = self.layer_name
        specs = [
            CacheSpec(name, "window", "slot", (self.head_dim,), dtype, rows_per_slot=self.window + spare_rows)
        ]
        for cache, compressor in self.compressors.items():
            row_shape: tuple[int, ...] = (self.head_dim,)
            row_dtype = dtype
            if cache == "index_keys":
                row_shape, row_dtype = self.index_format.row_shape, self.index_format.dtype
            specs += [
                CacheSpec(name, cache, "paged", row_shape, row_dtype, tokens_per_row=self.ratio),
                CacheSpec(
                    name,
                    f"{cache}_state",
                    "slot",
                    (2, compressor.columns),
                    "float32",
                    rows_per_slot=compressor.slots + spare_rows,
                ),
            ]
        return specs
