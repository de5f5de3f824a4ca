"""Where a Llama checkpoint's tensors belong: names as data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom.models.checkpoint.loading import load_weights
from atom.models.layers.experts import Experts
from atom.models.layers.linear import FusedLinear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from atom.models.checkpoint.loading import WeightReader
    from atom.models.llama.model import LlamaForCausalLM

STACKED: dict[str, dict[str, str]] = {
    "self_attn.qkv_proj": {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj"},
    "mlp.gate_up_proj": {"gate": "mlp.gate_proj", "up": "mlp.up_proj"},
}
"""Fused layer, within a decoder layer -> its parts -> their names in a checkpoint. Others keep theirs."""

DERIVED = ("self_attn.rotary_emb.inv_freq",)
"""Tensors of a decoder layer that older exporters saved and that follow from the configuration."""


def weight_destinations(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """Checkpoint name -> the tensor to fill, for every parameter of a model that is not packed yet."""
    return {model.checkpoint_name(name): tensor for name, tensor in _destinations(model)}


def unwanted_names(model: LlamaForCausalLM) -> set[str]:
    """Checkpoint names that may be there and are not read."""
    names = {f"model.layers.{i}.{name}" for i in range(model.config.num_hidden_layers) for name in DERIVED}
    if model.config.tie_word_embeddings:
        names.add("lm_head.weight")
    return names


def load_llama_weights(
    model: LlamaForCausalLM, checkpoint: WeightReader, *, progress: Callable[[int, int], None] | None = None
) -> None:
    """Fill every parameter of `model`; `progress` hears bytes read of bytes in all.

    Raises:
        WeightsError: the checkpoint's tensors do not fit.
    """
    load_weights(
        checkpoint,
        weight_destinations(model),
        parameters=dict(model.named_parameters()),
        ignore=unwanted_names(model),
        progress=progress,
    )


def _destinations(model: LlamaForCausalLM) -> Iterator[tuple[str, torch.Tensor]]:
    fused = {name: module for name, module in model.named_modules() if isinstance(module, FusedLinear)}
    experts = {name: module for name, module in model.named_modules() if isinstance(module, Experts)}
    for name, module in experts.items():
        for number, part, matrix in module.parts():
            yield f"{name}.{number}.{part}_proj.weight", matrix
    for name, parameter in model.named_parameters():
        owner, _, kind = name.rpartition(".")
        if owner in experts:
            continue
        if owner in fused:
            yield from _parts(owner, kind, fused[owner])
        else:
            yield name, parameter


def _parts(owner: str, kind: str, layer: FusedLinear) -> Iterator[tuple[str, torch.Tensor]]:
    within = next(name for name in STACKED if owner.endswith(f".{name}"))
    for part, name in STACKED[within].items():
        yield f"{owner.removesuffix(within)}{name}.{kind}", layer.part(part, kind)
