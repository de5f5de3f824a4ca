"""Where a DeepSeek-V4 checkpoint's tensors belong: names as data.

Three dialects are read: the published one, transformers' own, and the mixture that transformers saves.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from atom.models.checkpoint.loading import load_weights
from atom.models.layers.linear import FusedLinear

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from atom.models.checkpoint.loading import WeightReader
    from atom.models.deepseek_v4.model import DeepseekV4ForCausalLM

TOP: dict[str, tuple[str, ...]] = {
    "model.embed_tokens.weight": ("embed.weight", "embed_tokens.weight"),
    "lm_head.weight": ("head.weight", "lm_head.weight"),
    "model.norm.weight": ("norm.weight",),
    "model.hc_head.fn": ("hc_head_fn", "hc_head.hc_fn"),
    "model.hc_head.base": ("hc_head_base", "hc_head.hc_base"),
    "model.hc_head.scale": ("hc_head_scale", "hc_head.hc_scale"),
}
"""Parameter -> its names in a checkpoint, without a leading `model.`."""

LAYER: dict[str, tuple[str, ...]] = {
    "input_layernorm.weight": ("attn_norm.weight",),
    "post_attention_layernorm.weight": ("ffn_norm.weight",),
    **{
        f"{ours}_hc.{part}": (f"hc_{ours}_{part}",)
        for ours in ("attn", "ffn")
        for part in ("fn", "base", "scale")
    },
    "self_attn.q_a_proj.weight": ("attn.wq_a.weight",),
    "self_attn.q_a_norm.weight": ("attn.q_norm.weight",),
    "self_attn.q_b_proj.weight": ("attn.wq_b.weight",),
    "self_attn.kv_proj.weight": ("attn.wkv.weight",),
    "self_attn.kv_norm.weight": ("attn.kv_norm.weight", "attn.norm.weight"),
    "self_attn.o_a_proj.weight": ("attn.wo_a.weight",),
    "self_attn.o_b_proj.weight": ("attn.wo_b.weight",),
    "self_attn.sinks": ("attn.attn_sink",),
    "self_attn.indexer.q_b_proj.weight": (
        "attn.indexer.wq_b.weight",
        "self_attn.compressor.indexer.q_b_proj.weight",
    ),
    "self_attn.indexer.weights_proj.weight": (
        "attn.indexer.weights_proj.weight",
        "self_attn.compressor.indexer.scorer.weights_proj.weight",
    ),
    "mlp.gate.weight": ("ffn.gate.weight",),
    "mlp.gate.e_score_correction_bias": ("ffn.gate.bias",),
    "mlp.gate.tid2eid": ("ffn.gate.tid2eid",),
    "mlp.shared_experts.gate_up_proj.weight[gate]": (
        "ffn.shared_experts.w1.weight",
        "mlp.shared_experts.gate_proj.weight",
    ),
    "mlp.shared_experts.gate_up_proj.weight[up]": (
        "ffn.shared_experts.w3.weight",
        "mlp.shared_experts.up_proj.weight",
    ),
    "mlp.shared_experts.down_proj.weight": ("ffn.shared_experts.w2.weight",),
    **{
        f"{ours}.{parameter}": (f"{published}.{theirs}", f"{converted}.{own}")
        for ours, published, converted in (
            ("self_attn.compressor", "attn.compressor", "self_attn.compressor"),
            ("self_attn.indexer.compressor", "attn.indexer.compressor", "self_attn.compressor.indexer"),
        )
        for parameter, theirs, own in (
            ("kv_gate_proj.weight[kv]", "wkv.weight", "kv_proj.weight"),
            ("kv_gate_proj.weight[gate]", "wgate.weight", "gate_proj.weight"),
            ("position_bias", "ape", "position_bias"),
            ("norm.weight", "norm.weight", "kv_norm.weight"),
        )
    },
}
"""Parameter of a layer, `[part]` for one projection of a fused one -> its names in a checkpoint. Its own name
is one too."""

_IN_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"(?:ffn|mlp)\.experts\.(\d+)\.(w[123])\.weight")
_PART = re.compile(r"(.+)\.(\w+)\[(\w+)\]")
_DRAFT_LAYERS = re.compile(r"(model\.)?mtp\.")


def _aliases(table: dict[str, tuple[str, ...]]) -> dict[str, str]:
    named = {ours: ours for ours in table if "[" not in ours}
    return named | {theirs: ours for ours, names in table.items() for theirs in names}


_TOP, _LAYER = _aliases(TOP), _aliases(LAYER)


def weight_destinations(model: DeepseekV4ForCausalLM, names: list[str]) -> dict[str, torch.Tensor]:
    """Checkpoint name -> the tensor to fill, for those of `names` that belong to the model."""
    found = {name: _destination(model, name.removeprefix("model.")) for name in names}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def load_deepseek_v4_weights(
    model: DeepseekV4ForCausalLM,
    checkpoint: WeightReader,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Fill every parameter of `model`; `progress` hears bytes read of bytes in all.

    Raises:
        WeightsError: the checkpoint's tensors do not fit.
    """
    names = list(checkpoint.tensors)
    load_weights(
        checkpoint,
        weight_destinations(model, names),
        parameters=dict(model.named_parameters()),
        ignore={name for name in names if _DRAFT_LAYERS.match(name)},
        progress=progress,
    )


def _destination(model: DeepseekV4ForCausalLM, name: str) -> torch.Tensor | None:
    in_layer = _IN_LAYER.fullmatch(name)
    if in_layer is None:
        return _tensor(model, _TOP[name]) if name in _TOP else None
    layer, within = f"model.layers.{in_layer[1]}", in_layer[2]
    expert = _EXPERT.fullmatch(within)
    if expert is not None:
        return _expert(model, f"{layer}.mlp.experts", int(expert[1]), expert[2])
    if within in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"):
        return _tensor(model, f"{layer}.{within}")
    return _tensor(model, f"{layer}.{_LAYER[within]}") if within in _LAYER else None


def _tensor(model: DeepseekV4ForCausalLM, name: str) -> torch.Tensor | None:
    part = _PART.fullmatch(name)
    try:
        if part is None:
            return model.get_parameter(name)
        layer = model.get_submodule(part[1])
    except AttributeError:  # of another kind of layer, or of a layer past the last
        return None
    assert isinstance(layer, FusedLinear)
    return layer.part(part[3], part[2])


def _expert(model: DeepseekV4ForCausalLM, experts: str, number: int, matrix: str) -> torch.Tensor | None:
    whole = _tensor(model, f"{experts}.{'down_proj' if matrix == 'w2' else 'gate_up_proj'}")
    if whole is None or number >= whole.shape[0]:
        return None
    if matrix == "w2":
        return whole[number]
    gate, up = whole[number].chunk(2)
    return gate if matrix == "w1" else up
