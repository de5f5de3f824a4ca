"""The Llama architecture over flat rows `[num_tokens, hidden]`; attention goes by the forward context."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import nn

from atom.compile import support_torch_compile
from atom.graphs import token_graph
from atom.models.layers.attention import Attention
from atom.models.layers.attention_metadata import AttentionMetadataBuilder
from atom.models.layers.embedding import LMHead, TokenEmbedding
from atom.models.layers.linear import Linear, QKVLinear
from atom.models.layers.mlp import GatedMLP
from atom.models.layers.norm import RMSNorm
from atom.models.layers.packing import weight_form
from atom.models.layers.rotary import RotaryEmbedding
from atom.models.llama.config import LlamaConfig
from atom.models.llama.weights import load_llama_weights

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom.config import CacheSpec, Config
    from atom.models.checkpoint.loading import WeightReader
    from atom.models.layers.rotary import CosSin


class LlamaAttention(nn.Module):
    """Projections, rotation, paged attention, projection back."""

    def __init__(
        self,
        config: LlamaConfig,
        rotary: RotaryEmbedding,
        *,
        layer_id: int,
        prefix: str,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        bias = config.attention_bias
        self.qkv_proj = QKVLinear(
            config.hidden_size,
            self.num_heads,
            self.num_kv_heads,
            self.head_dim,
            bias=bias,
            dtype=dtype,
            device=device,
        )
        self.o_proj = Linear(
            self.num_heads * self.head_dim, config.hidden_size, bias=bias, dtype=dtype, device=device
        )
        self.rotate: Callable[[torch.Tensor, CosSin], torch.Tensor] = rotary.rotate
        self.attn = Attention(
            self.num_heads, self.num_kv_heads, self.head_dim, layer_id=layer_id, layer_name=f"{prefix}.attn"
        )

    def forward(self, hidden_states: torch.Tensor, cos_sin: CosSin) -> torch.Tensor:
        """`[rows, hidden]` of `[rows, hidden]`; `cos_sin` as `RotaryEmbedding.forward` gives it."""
        heads = self.qkv_proj(hidden_states).view(-1, self.num_heads + 2 * self.num_kv_heads, self.head_dim)
        turned = self.rotate(self.normed(heads[:, : -self.num_kv_heads]), cos_sin)
        query, key = turned[:, : self.num_heads], turned[:, self.num_heads :]
        attended = self.attn(query, key, heads[:, -self.num_kv_heads :])
        return self.o_proj(attended)  # type: ignore[no-any-return]

    def normed(self, heads: torch.Tensor) -> torch.Tensor:
        """Query and key heads `[rows, heads + kv_heads, head_dim]` before they turn: a Llama's as is."""
        return heads


class LlamaDecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to what came in."""

    attention_class: type[LlamaAttention] = LlamaAttention

    def __init__(
        self,
        config: LlamaConfig,
        rotary: RotaryEmbedding,
        *,
        layer_id: int,
        prefix: str,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, dtype=dtype, device=device)
        self.self_attn = self.attention_class(
            config, rotary, layer_id=layer_id, prefix=f"{prefix}.self_attn", dtype=dtype, device=device
        )
        self.post_attention_layernorm = RMSNorm(hidden, eps, dtype=dtype, device=device)
        self.mlp = self.make_mlp(config, layer_id, dtype=dtype, device=device)

    def make_mlp(
        self, config: LlamaConfig, layer_id: int, *, dtype: torch.dtype, device: torch.device
    ) -> nn.Module:
        """The layer's second half, `[rows, hidden]` of `[rows, hidden]`."""
        width = config.intermediate_size
        return GatedMLP(config.hidden_size, width, bias=config.mlp_bias, dtype=dtype, device=device)

    def forward(
        self, hidden_states: torch.Tensor, residual: torch.Tensor | None, cos_sin: CosSin
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The MLP's result, not yet added, and the residual to add it to, each `[rows, hidden]`.

        Adding is left to the next norm, which reads both anyway. The first layer has no residual.
        """
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm.add(hidden_states, residual)
        attended = self.self_attn(hidden_states, cos_sin)
        hidden_states, residual = self.post_attention_layernorm.add(attended, residual)
        return self.mlp(hidden_states), residual


@token_graph
@support_torch_compile
class LlamaModel(nn.Module):
    """Embedding, layers and last norm: everything that is done for each row, so the unit that is recorded."""

    layer_class: type[LlamaDecoderLayer] = LlamaDecoderLayer

    def __init__(
        self,
        config: LlamaConfig,
        *,
        atom_config: Config,
        prefix: str = "model",
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.embed_tokens = TokenEmbedding(config.vocab_size, config.hidden_size, dtype=dtype, device=device)
        self.rotary = RotaryEmbedding(
            config.head_dim,
            max_position=max(config.max_position_embeddings, atom_config.model_config.max_model_len or 0),
            theta=config.rope_theta,
            scaling=config.rope_scaling,
            device=device,
        )
        self.layers = nn.ModuleList(
            self.layer_class(
                config, self.rotary, layer_id=i, prefix=f"{prefix}.layers.{i}", dtype=dtype, device=device
            )
            for i in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states `[rows, hidden]` of int64 ids and positions `[rows]`."""
        hidden_states: torch.Tensor = self.embed_tokens(input_ids)
        residual: torch.Tensor | None = None
        cos_sin = self.rotary(positions)
        for layer in self.layers:
            hidden_states, residual = layer(hidden_states, residual, cos_sin)
        assert residual is not None, "a model has layers"
        return self.norm.add(hidden_states, residual)[0]


class LlamaForCausalLM(nn.Module):
    """A Llama with its head, as a runner drives it."""

    config_class: type[LlamaConfig] = LlamaConfig
    model_class: type[LlamaModel] = LlamaModel
    regions = ("aiter.unified_attention_with_output",)
    """Where a token graph of it breaks."""

    def __init__(
        self, config: LlamaConfig, *, atom_config: Config, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Weights are not initialised: `load_weights` fills them."""
        super().__init__()
        self.config = config
        self.dtype, self.device = dtype, device
        self.settings = atom_config.model_config
        self.kv_cache_dtype = atom_config.kv_cache_config.kv_cache_dtype
        self.model = self.model_class(
            config, atom_config=atom_config, prefix="model", dtype=dtype, device=device
        )
        self.lm_head = LMHead(config.hidden_size, config.vocab_size, dtype=dtype, device=device)
        if config.tie_word_embeddings:
            self.lm_head.tie(self.model.embed_tokens)
        self.attn_metadata_builder = AttentionMetadataBuilder()

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states `[rows, hidden]` of int64 ids and positions `[rows]`."""
        return self.model(input_ids, positions)  # type: ignore[no-any-return]

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Float32 logits `[n, vocab]` of hidden states `[n, hidden]`."""
        return self.lm_head(hidden_states)  # type: ignore[no-any-return]

    @cached_property
    def attention_layers(self) -> dict[int, Attention]:
        """Attention layers by id."""
        return {module.layer_id: module for module in self.modules() if isinstance(module, Attention)}

    def kv_cache_spec(self) -> list[CacheSpec]:
        """Keys and values of every layer, in `kv_cache_dtype`; "auto" is the model's own number format."""
        asked = self.kv_cache_dtype
        dtype = str(self.dtype).removeprefix("torch.") if asked == "auto" else asked
        return [spec for layer in self.attention_layers.values() for spec in layer.cache_spec(dtype)]

    def prefill_token_buckets(self, config: Config) -> list[int]:
        """The prefill buckets that the configuration lists; none by default: rows outweigh launches there."""
        asked = config.compilation_config.cudagraph_prefill_capture_sizes
        return [] if asked is None else list(config.prefill_capture_sizes or [])

    def checkpoint_name(self, name: str) -> str:
        """What a checkpoint calls a tensor that is `name` here, fused ones by their parts."""
        return name

    def load_weights(
        self, checkpoint: WeightReader, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Fill every parameter from a checkpoint, then pack the weights (see `Linear.pack`).

        Raises:
            WeightsError: the checkpoint's tensors do not fit.
        """
        load_llama_weights(self, checkpoint, progress=progress)
        form = weight_form(self.settings, checkpoint.tensors.values(), dtype=self.dtype, device=self.device)
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack(form)
