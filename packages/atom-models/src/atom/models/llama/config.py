"""What a Llama checkpoint's configuration says, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atom.models.checkpoint.names import shown
from atom.models.errors import ModelConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes and settings of a Llama; names are Hugging Face's."""

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
    def from_hf(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """The settings of a configuration in Hugging Face's names.

        Raises:
            ModelConfigError: a size is missing or not positive, heads do not fit together, or the checkpoint
                wants something this model does not do.
        """
        fields = _Fields(config)
        hidden_size = fields.size("hidden_size")
        heads = fields.size("num_attention_heads")
        kv_heads = fields.size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise fields.fault("num_key_value_heads", f"a divisor of num_attention_heads, which is {heads}")
        head_dim = fields.size("head_dim", hidden_size // heads)
        if head_dim % 2:
            raise fields.fault("head_dim", "an even number")
        fields.require("hidden_act", "silu")
        fields.require("partial_rotary_factor", 1)
        fields.require("rope_parameters", None)
        fields.require("sliding_window", None)
        return cls(
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


class _Fields:
    """Reads fields; one that is absent or null has its default."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def size(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fault(key, "a positive whole number")
        return value

    def number(self, key: str, default: float) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.fault(key, "a positive number")
        return float(value)

    def switch(self, key: str) -> bool:
        value = self._get(key, False)
        if not isinstance(value, bool):
            raise self.fault(key, "true or false")
        return value

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        value = self._get(key, None)
        if value is not None and not isinstance(value, Mapping):
            raise self.fault(key, "an object or null")
        return value

    def require(self, key: str, only: object) -> None:
        """This model does what one value of the field asks for, and nothing else."""
        if self._get(key, only) != only:
            raise self.fault(key, f"{only!r}, all that LlamaForCausalLM does here")

    def fault(self, key: str, expected: str) -> ModelConfigError:
        return ModelConfigError(
            f"Llama configuration: {key} is {shown(self._config.get(key))}, expected {expected}"
        )

    def _get(self, key: str, default: Any) -> Any:
        value = self._config.get(key)
        return default if value is None else value
