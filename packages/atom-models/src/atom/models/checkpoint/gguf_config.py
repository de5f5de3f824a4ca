"""GGUF metadata to a configuration in Hugging Face's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atom.models.checkpoint.gguf_fields import GGUFFields
from atom.models.checkpoint.gguf_names import ARCHITECTURES, GGUFArchitecture
from atom.models.checkpoint.gguf_rope import rope_scaling
from atom.models.checkpoint.gguf_types import FLOATS
from atom.models.checkpoint.names import shown
from atom.models.errors import CorruptCheckpointError, UnsupportedCheckpointError

if TYPE_CHECKING:
    import numpy as np

    from atom.models.checkpoint.gguf_header import GGUFHeader

# Settings that change what the model computes and that the models here do not have, with the value that means
# "off".
_FOREIGN = {
    "expert_count": 0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "attention.scale": 0.0,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.causal": True,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "use_parallel_residual": False,
}


def gguf_architecture(header: GGUFHeader) -> GGUFArchitecture:
    """The architecture a file names.

    Raises:
        CorruptCheckpointError: it names none.
        UnsupportedCheckpointError: it names one that is not read here.
    """
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CorruptCheckpointError(f"{header.path}: general.architecture is {shown(name)}, expected a name")
    if name not in ARCHITECTURES:
        raise UnsupportedCheckpointError(
            f"{header.path}: GGUF architecture {shown(name)} is not supported; supported are "
            f"{', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]


def gguf_config(header: GGUFHeader, *, rope_factors: np.ndarray | None) -> dict[str, Any]:
    """The `config.json` that the file was converted from, as far as its metadata tells.

    Args:
        header: the checked header.
        rope_factors: float32 divisors of the RoPE frequencies, for a file that has them.

    Raises:
        CorruptCheckpointError: a field is absent or contradicts another.
        UnsupportedCheckpointError: an architecture or a setting that the models here do not have.
    """
    architecture = gguf_architecture(header)
    fields = GGUFFields(header)
    _refuse_foreign(fields)
    hidden = fields.count("embedding_length")
    heads = fields.count("attention.head_count")
    key_heads = fields.count("attention.head_count_kv", default=heads)
    head_dim = fields.count("attention.key_length", default=max(1, hidden // heads))
    if (
        heads % key_heads
        or head_dim % 2
        or fields.count("attention.value_length", default=head_dim) != head_dim
    ):
        raise CorruptCheckpointError(
            f"{header.path}: {heads} query heads, {key_heads} key heads of {head_dim} do not make an "
            "attention layer"
        )
    rotary_dim = fields.count("rope.dimension_count", default=head_dim)
    theta = fields.number("rope.freq_base", default=10000.0)
    context = fields.count("context_length")
    config: dict[str, Any] = {
        "architectures": [architecture.hf_class],
        "model_type": architecture.model_type,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": fields.count("feed_forward_length"),
        "num_hidden_layers": fields.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": head_dim,
        "max_position_embeddings": context,
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_scaling": rope_scaling(
            fields, theta=theta, rotary_dim=rotary_dim, context=context, factors=rope_factors
        ),
        "vocab_size": _vocab_size(header, hidden),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "dtype": _dtype(header),
    }
    if rotary_dim != head_dim:
        config["partial_rotary_factor"] = rotary_dim / head_dim
    if (window := fields.count("attention.sliding_window", default=0)) > 0:
        config["sliding_window"] = window
    return config


def _refuse_foreign(fields: GGUFFields) -> None:
    for name, off in _FOREIGN.items():
        value = fields.get(name, off)
        if value != off:
            raise UnsupportedCheckpointError(
                f"{fields.path}: {fields.key(name)} is {shown(value)}, a setting the models here do not have"
            )


def _vocab_size(header: GGUFHeader, hidden: int) -> int:
    """Rows of the embedding; what the metadata says of it may be absent or about the tokenizer."""
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise CorruptCheckpointError(f"{header.path}: tensor 'token_embd.weight' is missing")
    if len(embedding.shape) != 2 or embedding.shape[1] != hidden:
        raise CorruptCheckpointError(
            f"{header.path}: tensor 'token_embd.weight' is {list(embedding.shape)}, expected rows of {hidden}"
        )
    return embedding.shape[0]


def _dtype(header: GGUFHeader) -> str:
    """The format most of the matrices are in (norms are always float32).

    For block formats bfloat16, which is what such models were published in.
    """
    nbytes = dict.fromkeys(FLOATS.values(), 0)
    for tensor in header.tensors.values():
        if len(tensor.shape) > 1:
            nbytes[FLOATS.get(tensor.type.name, "bfloat16")] += tensor.nbytes
    return max(nbytes, key=lambda name: nbytes[name])
