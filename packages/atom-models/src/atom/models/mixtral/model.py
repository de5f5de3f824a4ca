"""The Mixtral architecture: a Mistral whose MLPs are mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from atom.models.layers.sparse_mlp import SparseMLP
from atom.models.llama.model import LlamaDecoderLayer
from atom.models.mistral.model import MistralConfig, MistralForCausalLM, MistralModel

if TYPE_CHECKING:
    import torch
    from torch import nn

    from atom.models.checkpoint.config_fields import ConfigFields
    from atom.models.llama.config import LlamaConfig

_NAMES = {
    ".mlp.": ".block_sparse_moe.",
    ".gate_proj.": ".w1.",
    ".down_proj.": ".w2.",
    ".up_proj.": ".w3.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtralConfig(MistralConfig):
    """Sizes and settings of a Mixtral."""

    title: ClassVar[str] = "Mixtral"
    architecture: ClassVar[str] = "MixtralForCausalLM"

    num_local_experts: int
    num_experts_per_tok: int

    @classmethod
    def own_fields(cls, fields: ConfigFields) -> dict[str, Any]:
        """How many experts there are."""
        experts, chosen = fields.size("num_local_experts", 8), fields.size("num_experts_per_tok", 2)
        if chosen > experts:
            raise fields.fault("num_experts_per_tok", f"at most num_local_experts, which is {experts}")
        own = MistralConfig.own_fields(fields)
        return own | {"num_local_experts": experts, "num_experts_per_tok": chosen}


class MixtralDecoderLayer(LlamaDecoderLayer):
    """A Llama's layer with experts."""

    def make_mlp(
        self,
        config: MixtralConfig,  # type: ignore[override]
        layer_id: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> nn.Module:
        """Experts in every layer."""
        return SparseMLP(
            config.num_local_experts,
            config.num_experts_per_tok,
            config.hidden_size,
            config.intermediate_size,
            renormalise=True,
            dtype=dtype,
            device=device,
        )


class MixtralModel(MistralModel):
    """The unit that is recorded and compiled, as a Llama's."""

    layer_class = MixtralDecoderLayer


class MixtralForCausalLM(MistralForCausalLM):
    """A Mixtral with its head, as a runner drives it."""

    config_class: type[LlamaConfig] = MixtralConfig
    model_class = MixtralModel

    def checkpoint_name(self, name: str) -> str:
        """Published Mixtrals call the MLP `block_sparse_moe` and its matrices w1, w2 and w3."""
        for ours, theirs in _NAMES.items():
            name = name.replace(ours, theirs)
        return name
