"""The DeepSeek-V4 architecture over flat rows `[num_tokens, hidden]`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import nn

from atom.compile import support_torch_compile
from atom.graphs import token_graph
from atom.models.deepseek_v4.attention import DeepseekV4Attention
from atom.models.deepseek_v4.config import DeepseekV4Config
from atom.models.deepseek_v4.hyper_connections import HyperConnection, HyperHead
from atom.models.deepseek_v4.metadata import DeepseekV4MetadataBuilder
from atom.models.deepseek_v4.moe import MoE
from atom.models.deepseek_v4.rope import InterleavedRotary
from atom.models.deepseek_v4.weights import load_deepseek_v4_weights
from atom.models.layers.embedding import LMHead, TokenEmbedding
from atom.models.layers.linear import Linear
from atom.models.layers.norm import RMSNorm
from atom.models.layers.packing import weight_form

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom.config import CacheSpec, Config
    from atom.models.checkpoint.loading import WeightReader
    from atom.models.deepseek_v4.index_format import IndexCacheType
    from atom.models.layers.rotary import CosSin


class DeepseekV4DecoderLayer(nn.Module):
    """Attention and experts, each between a hyper-connection's collapse and expansion."""

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
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.attn_hc = HyperConnection(config, device=device)
        self.input_layernorm = RMSNorm(hidden, eps, dtype=dtype, device=device)
        self.self_attn = DeepseekV4Attention(
            config,
            rotary,
            layer_id=layer_id,
            prefix=f"{prefix}.self_attn",
            index_cache=index_cache,
            max_model_len=max_model_len,
            dtype=dtype,
            device=device,
        )
        self.ffn_hc = HyperConnection(config, device=device)
        self.post_attention_layernorm = RMSNorm(hidden, eps, dtype=dtype, device=device)
        self.mlp = MoE(config, layer_id=layer_id, dtype=dtype, device=device)

    def forward(
        self,
        streams: torch.Tensor,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        cos_sin: CosSin,
    ) -> torch.Tensor:
        """`[rows, streams, hidden]` of `[rows, streams, hidden]`."""
        x, post, comb = self.attn_hc(streams)
        y = self.self_attn(self.input_layernorm(x), positions, rows, cos_sin)
        streams = self.attn_hc.expand(y, streams, post, comb)
        x, post, comb = self.ffn_hc(streams)
        y = self.mlp(self.post_attention_layernorm(x), input_ids)
        return self.ffn_hc.expand(y, streams, post, comb)


@support_torch_compile
class DeepseekV4Model(nn.Module):
    """Embedding, layers, head of the streams and last norm."""

    def __init__(
        self,
        config: DeepseekV4Config,
        *,
        atom_config: Config,
        prefix: str = "model",
        index_cache: IndexCacheType,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.streams = config.hc_mult
        self.embed_tokens = TokenEmbedding(config.vocab_size, config.hidden_size, dtype=dtype, device=device)
        longest = config.max_position_embeddings
        max_model_len = min(atom_config.model_config.max_model_len or longest, longest)
        self.rotary = nn.ModuleDict(
            {
                "plain": _rotary(config, config.rope_theta, None, device),
                "compress": _rotary(config, config.compress_rope_theta, config.compress_rope_scaling, device),
            }
        )
        self.layers = nn.ModuleList(
            DeepseekV4DecoderLayer(
                config,
                self.rotary["compress"],  # type: ignore[arg-type]
                layer_id=i,
                prefix=f"{prefix}.layers.{i}",
                index_cache=index_cache,
                max_model_len=max_model_len,
                dtype=dtype,
                device=device,
            )
            for i in range(config.num_hidden_layers)
        )
        self.hc_head = HyperHead(config, device=device)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states `[rows, hidden]` of int64 ids and positions `[rows]`."""
        rows = torch.ops.aiter.v4_step_rows(positions)
        plain, compress = self.rotary["plain"](positions), self.rotary["compress"](positions)
        streams = self.embed_tokens(input_ids).unsqueeze(1).repeat(1, self.streams, 1)
        for layer in self.layers:
            # A layer's rotation goes by its kind: for its queries and window too, not its entries alone.
            cos_sin = plain if layer.self_attn.kind == "sliding" else compress  # type: ignore[union-attr]
            streams = layer(streams, input_ids, positions, rows, cos_sin)
        return self.norm(self.hc_head(streams))  # type: ignore[no-any-return]


@token_graph
class DeepseekV4ForCausalLM(nn.Module):
    """A DeepSeek-V4 with its head, as a runner drives it: the unit that is recorded."""

    config_class = DeepseekV4Config
    regions = ("_fp4_band_logits",)
    """Where a token graph of it breaks: there alone, and only with an FP4 index cache."""

    def __init__(
        self, config: DeepseekV4Config, *, atom_config: Config, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Weights are not initialised: `load_weights` fills them."""
        super().__init__()
        self.config = config
        self.dtype, self.device = dtype, device
        self.settings = atom_config.model_config
        self.kv_cache_dtype = atom_config.kv_cache_config.kv_cache_dtype
        self.spare_rows = atom_config.max_query_len - 1
        asked = atom_config.kv_cache_config.index_cache_dtype
        index_cache: IndexCacheType = (
            ("fp4" if config.is_quantised else "model") if asked == "auto" else asked  # type: ignore[assignment]
        )
        self.model = DeepseekV4Model(
            config,
            atom_config=atom_config,
            prefix="model",
            index_cache=index_cache,
            dtype=dtype,
            device=device,
        )
        self.lm_head = LMHead(config.hidden_size, config.vocab_size, dtype=dtype, device=device)
        self.attn_metadata_builder = DeepseekV4MetadataBuilder()

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states `[rows, hidden]` of int64 ids and positions `[rows]`."""
        return self.model(input_ids, positions)  # type: ignore[no-any-return]

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Float32 logits `[n, vocab]` of hidden states `[n, hidden]`."""
        return self.lm_head(hidden_states)  # type: ignore[no-any-return]

    @cached_property
    def attention_layers(self) -> dict[int, DeepseekV4Attention]:
        """Attention layers by id."""
        return {m.layer_id: m for m in self.modules() if isinstance(m, DeepseekV4Attention)}

    def kv_cache_spec(self) -> list[CacheSpec]:
        """Windows and compressor state in slots, entries and index keys in pages.

        Window and entries are kept in `kv_cache_dtype`; "auto" is the model's own number format.
        """
        asked = self.kv_cache_dtype
        dtype = str(self.dtype).removeprefix("torch.") if asked == "auto" else asked
        return [
            spec
            for layer in self.attention_layers.values()
            for spec in layer.cache_spec(dtype, self.spare_rows)
        ]

    def prefill_token_buckets(self, config: Config) -> list[int]:
        """None: only decode buckets are recorded."""
        return []

    def load_weights(
        self, checkpoint: WeightReader, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Fill every parameter from a checkpoint, then pack the weights (see `Linear.pack`).

        Raises:
            WeightsError: the checkpoint's tensors do not fit.
        """
        load_deepseek_v4_weights(self, checkpoint, progress=progress)
        form = weight_form(self.settings, checkpoint.tensors.values(), dtype=self.dtype, device=self.device)
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack(form)


def _rotary(
    config: DeepseekV4Config, theta: float, scaling: object, device: torch.device
) -> InterleavedRotary:
    return InterleavedRotary(
        config.rope_dim,
        theta=theta,
        scaling=scaling,  # type: ignore[arg-type]
        max_position=config.max_position_embeddings,
        device=device,
    )
