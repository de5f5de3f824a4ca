"""StableLM: a decoder with layer norms that turns a quarter of each head (arXiv 2402.17834)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atom.compile import support_torch_compile
from atom.graphs import token_graph
from atom.models.checkpoint.config_fields import ConfigFields
from atom.models.layers import GatedMLP, RotaryEmbedding, TokenEmbedding
from atom.models.llama.model import LlamaAttention, LlamaForCausalLM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atom.config import Config


@dataclass(frozen=True)
class StableLmConfig:
    """Sizes and settings; names are Hugging Face's, and those that a Llama's attention reads."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    layer_norm_eps: float
    rope_theta: float
    rotary_dim: int
    tie_word_embeddings: bool
    attention_bias: bool = False

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> StableLmConfig:
        """Read a `config.json`; what this model does not do is an error that names the field."""
        fields = ConfigFields(config, title="StableLM", architecture="StableLmForCausalLM")
        for off in ("use_qkv_bias", "qk_layernorm", "use_parallel_residual"):
            fields.require(off, False)
        hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
        return cls(
            vocab_size=fields.size("vocab_size"),
            hidden_size=hidden,
            intermediate_size=fields.size("intermediate_size"),
            num_hidden_layers=fields.size("num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=fields.size("num_key_value_heads", heads),
            max_position_embeddings=fields.size("max_position_embeddings", 4096),
            layer_norm_eps=fields.number("layer_norm_eps", 1e-5),
            rope_theta=fields.number("rope_theta", 10000.0),
            rotary_dim=int(hidden // heads * fields.number("partial_rotary_factor", 0.25)),
            tie_word_embeddings=fields.switch("tie_word_embeddings"),
        )


class StableLmLayer(nn.Module):
    """Attention and MLP, each behind a layer norm and added to what came in."""

    def __init__(self, config: StableLmConfig, rotary: RotaryEmbedding, layer_id: int, **made: Any) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.layer_norm_eps
        self.input_layernorm = nn.LayerNorm(hidden, eps, **made)
        prefix = f"model.layers.{layer_id}.self_attn"  # names the layer's cache
        self.self_attn = LlamaAttention(config, rotary, layer_id=layer_id, prefix=prefix, **made)
        self.post_attention_layernorm = nn.LayerNorm(hidden, eps, **made)
        self.mlp = GatedMLP(hidden, config.intermediate_size, **made)

    def forward(self, x: torch.Tensor, cos_sin: Any) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos_sin)
        return x + self.mlp(self.post_attention_layernorm(x))


@token_graph  # recorded by ATOM's graphs ...
@support_torch_compile  # ... and compiled in pieces at levels 2 and 3
class StableLmModel(nn.Module):
    """Everything that is done for each row, over flat rows `[num_tokens]`."""

    def __init__(self, config: StableLmConfig, *, atom_config: Config, prefix: str = "", **made: Any) -> None:
        super().__init__()
        self.embed_tokens = TokenEmbedding(config.vocab_size, config.hidden_size, **made)
        self.rotary = RotaryEmbedding(
            config.head_dim,
            max_position=config.max_position_embeddings,
            theta=config.rope_theta,
            rotary_dim=config.rotary_dim,
            device=made["device"],
        )
        self.layers = nn.ModuleList(
            StableLmLayer(config, self.rotary, i, **made) for i in range(config.num_hidden_layers)
        )
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps, **made)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x, cos_sin = self.embed_tokens(input_ids), self.rotary(positions)
        for layer in self.layers:
            x = layer(x, cos_sin)
        return self.norm(x)


class StableLmForCausalLM(LlamaForCausalLM):
    """What a runner drives; caches, head and the loading of fused weights are a Llama's."""

    config_class = StableLmConfig
    model_class = StableLmModel
