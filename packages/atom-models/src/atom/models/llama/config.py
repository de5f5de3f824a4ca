"""What a Llama checkpoint's configuration says, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from atom.models.checkpoint.config_fields import ConfigFields

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes and settings of a Llama, and of models of its shape; names are Hugging Face's."""

    title: ClassVar[str] = "Llama"
    architecture: ClassVar[str] = "LlamaForCausalLM"
    default_head_dim: ClassVar[int | None] = None
    """Where a configuration names none; None: `hidden_size / num_attention_heads`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """The settings of a configuration in Hugging Face's names.

        Raises:
            ModelConfigError: a size is missing or not positive, heads do not fit together, or the checkpoint
                wants something this model does not do.
        """
        fields = ConfigFields(config, title=cls.title, architecture=cls.architecture)
        hidden_size = fields.size("hidden_size")
        heads = fields.size("num_attention_heads")
        kv_heads = fields.size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise fields.fault("num_key_value_heads", f"a divisor of num_attention_heads, which is {heads}")
        head_dim = fields.size("head_dim", cls.default_head_dim or hidden_size // heads)
        if head_dim % 2:
            raise fields.fault("head_dim", "an even number")
        fields.require("hidden_act", "silu")
        fields.require("partial_rotary_factor", 1)
        fields.require("rope_parameters", None)
        return cls(
            **cls.own_fields(fields),
            vocab_size=fields.size("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.size("intermediate_size"),
            num_hidden_layers=fields.size("num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=fields.size("max_position_embeddings", 2048),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope_theta=fields.number("rope_theta", 10000.0),
            rope_scaling=fields.mapping("rope_scaling"),
            tie_word_embeddings=fields.switch("tie_word_embeddings"),
            attention_bias=fields.switch("attention_bias"),
            mlp_bias=fields.switch("mlp_bias"),
        )

    @classmethod
    def own_fields(cls, fields: ConfigFields) -> dict[str, Any]:
        """Fields that a class adds; refuses what it does not do."""
        fields.require("sliding_window", None)
        return {}
