"""GGUF tensor names to Hugging Face names, and which rows GGUF stores in another order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom.models.checkpoint.names import shown
from atom.models.errors import UnsupportedCheckpointError

if TYPE_CHECKING:
    from pathlib import Path

ROPE_FACTORS = "rope_freqs.weight"
"""Llama 3's RoPE scaling as one divisor a frequency: no weight, but part of the configuration."""

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_BLOCK_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class GGUFArchitecture:
    """What has to be known of one `general.architecture` to read its files.

    `permuted_rows`: the public converter stores the rows of the query and key projections (weight and bias)
    in interleaved rotary order: the two halves of each head, which Hugging Face keeps apart, alternate. True
    for the Llama family alone.
    """

    hf_class: str
    model_type: str
    permuted_rows: bool


ARCHITECTURES = {
    "llama": GGUFArchitecture("LlamaForCausalLM", "llama", permuted_rows=True),
    "qwen2": GGUFArchitecture("Qwen2ForCausalLM", "qwen2", permuted_rows=False),
    "qwen3": GGUFArchitecture("Qwen3ForCausalLM", "qwen3", permuted_rows=False),
}


def hf_name(path: Path, name: str) -> str:
    """The Hugging Face name of a GGUF tensor.

    Raises:
        UnsupportedCheckpointError: a tensor the dense decoder models do not have.
    """
    if name in _WHOLE:
        return _WHOLE[name]
    match = _BLOCK_NAME.fullmatch(name)
    if match is not None and match[2] in _BLOCK:
        return f"model.layers.{match[1]}.{_BLOCK[match[2]]}.{match[3]}"
    raise UnsupportedCheckpointError(
        f"{path}: tensor {shown(name)} belongs to no model part that is known here"
    )


def permuted_heads(name: str, *, query_heads: int, key_heads: int) -> int | None:
    """How many heads a GGUF tensor's rows are permuted in, None unless it projects queries or keys."""
    match = _BLOCK_NAME.fullmatch(name)
    if match is None:
        return None
    return {"attn_q": query_heads, "attn_k": key_heads}.get(match[2])
