"""The dense Qwen3 architecture, by what sets it apart from a Llama: a norm over each query and key head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from atom.models.layers.norm import RMSNorm
from atom.models.llama.config import LlamaConfig
from atom.models.llama.model import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, LlamaModel

if TYPE_CHECKING:
    from atom.models.checkpoint.config_fields import ConfigFields
    from atom.models.layers.rotary import RotaryEmbedding


class Qwen3Config(LlamaConfig):
    """Sizes and settings of a Qwen3."""

    title: ClassVar[str] = "Qwen3"
    architecture: ClassVar[str] = "Qwen3ForCausalLM"
    default_head_dim: ClassVar[int | None] = 128

    @classmethod
    def own_fields(cls, fields: ConfigFields) -> dict[str, Any]:
        """Nothing; a window, which only `use_sliding_window` turns on, is refused."""
        fields.require("use_sliding_window", False)
        if any(kind != "full_attention" for kind in fields.sequence("layer_types") or ()):
            raise fields.fault("layer_types", "full_attention alone, all that Qwen3ForCausalLM does here")
        return {}


class Qwen3Attention(LlamaAttention):
    """A Llama's attention with normalised query and key heads."""

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
        super().__init__(config, rotary, layer_id=layer_id, prefix=prefix, dtype=dtype, device=device)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, dtype=dtype, device=device)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps, dtype=dtype, device=device)

    def normed(self, heads: torch.Tensor) -> torch.Tensor:
        """Each head divided by its own root mean square, before it turns."""
        query, key = heads[:, : self.num_heads], heads[:, self.num_heads :]
        return torch.cat((self.q_norm(query), self.k_norm(key)), dim=1)


class Qwen3DecoderLayer(LlamaDecoderLayer):
    """A Llama's layer with that attention."""

    attention_class = Qwen3Attention


class Qwen3Model(LlamaModel):
    """The unit that is recorded and compiled, as a Llama's."""

    layer_class = Qwen3DecoderLayer


class Qwen3ForCausalLM(LlamaForCausalLM):
    """A dense Qwen3 with its head, as a runner drives it."""

    config_class: type[LlamaConfig] = Qwen3Config
    model_class = Qwen3Model
