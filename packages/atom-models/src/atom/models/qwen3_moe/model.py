"""The Qwen3 architecture with experts: a dense Qwen3 whose MLPs are mixtures in most layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from atom.models.layers.sparse_mlp import SparseMLP
from atom.models.qwen3.model import Qwen3Config, Qwen3DecoderLayer, Qwen3ForCausalLM, Qwen3Model

if TYPE_CHECKING:
    import torch
    from torch import nn

    from atom.models.checkpoint.config_fields import ConfigFields
    from atom.models.llama.config import LlamaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3MoeConfig(Qwen3Config):
    """Sizes and settings of a Qwen3 with experts."""

    title: ClassVar[str] = "Qwen3-MoE"
    architecture: ClassVar[str] = "Qwen3MoeForCausalLM"

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    decoder_sparse_step: int
    mlp_only_layers: tuple[int, ...]

    @classmethod
    def own_fields(cls, fields: ConfigFields) -> dict[str, Any]:
        """How many experts there are, and where."""
        own = Qwen3Config.own_fields(fields)
        # Later exporters call it num_local_experts.
        experts = fields.size("num_experts", fields.value("num_local_experts", None))
        chosen = fields.size("num_experts_per_tok")
        if chosen > experts:
            raise fields.fault("num_experts_per_tok", f"at most num_experts, which is {experts}")
        dense = fields.sequence("mlp_only_layers") or []
        if any(not isinstance(layer, int) for layer in dense):
            raise fields.fault("mlp_only_layers", "a list of layer numbers")
        return own | {
            "num_experts": experts,
            "num_experts_per_tok": chosen,
            "moe_intermediate_size": fields.size("moe_intermediate_size"),
            "norm_topk_prob": fields.switch("norm_topk_prob"),
            "decoder_sparse_step": fields.size("decoder_sparse_step", 1),
            "mlp_only_layers": tuple(dense),
        }

    def is_sparse(self, layer_id: int) -> bool:
        """Whether a layer's MLP is a mixture of experts."""
        return layer_id not in self.mlp_only_layers and (layer_id + 1) % self.decoder_sparse_step == 0


class Qwen3MoeDecoderLayer(Qwen3DecoderLayer):
    """A Qwen3's layer, with experts where the configuration has them."""

    def make_mlp(
        self,
        config: Qwen3MoeConfig,  # type: ignore[override]
        layer_id: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> nn.Module:
        """Experts, or a dense MLP."""
        if not config.is_sparse(layer_id):
            return super().make_mlp(config, layer_id, dtype=dtype, device=device)
        return SparseMLP(
            config.num_experts,
            config.num_experts_per_tok,
            config.hidden_size,
            config.moe_intermediate_size,
            renormalise=config.norm_topk_prob,
            dtype=dtype,
            device=device,
        )


class Qwen3MoeModel(Qwen3Model):
    """The unit that is recorded and compiled, as a Llama's."""

    layer_class = Qwen3MoeDecoderLayer


class Qwen3MoeForCausalLM(Qwen3ForCausalLM):
    """A Qwen3 with experts and its head, as a runner drives it."""

    config_class: type[LlamaConfig] = Qwen3MoeConfig
    model_class = Qwen3MoeModel
