"""What a DeepSeek-V4 checkpoint's configuration says, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from atom.models.checkpoint.config_fields import ConfigFields

LayerKind = Literal["sliding", "sparse", "heavy"]
"""Attention of a layer: the window alone, or with compressed entries that are picked (CSA) or all read
(HCA)."""

_KINDS: dict[str, LayerKind] = {
    "sliding_attention": "sliding",
    "compressed_sparse_attention": "sparse",
    "heavily_compressed_attention": "heavy",
}
_RATIOS: dict[int, LayerKind] = {0: "sliding", 1: "sliding", 4: "sparse", 128: "heavy"}
_HASH, _TOP_K = "hash_moe", "moe"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekV4Config:
    """Sizes and settings of a DeepSeek-V4; names are Hugging Face's where it has one."""

    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    head_dim: int
    rope_dim: int
    """Trailing dimensions of a head, and of an index head, that turn."""
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    """Tokens a query sees directly, itself included."""
    layer_kinds: tuple[LayerKind, ...]
    sparse_ratio: int
    """Tokens of an entry in sparse layers."""
    heavy_ratio: int
    """Tokens of an entry in heavy layers."""
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    routed_scaling_factor: float
    swiglu_limit: float
    hash_layers: tuple[bool, ...]
    """Whether a layer's experts follow from the token ids."""
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float
    compress_rope_theta: float
    compress_rope_scaling: Mapping[str, Any] | None
    is_quantised: bool
    """Whether the checkpoint's weights are quantised, and so were trained for quantised index keys."""

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layer_kinds)

    def ratio(self, layer: int) -> int:
        """Tokens of a compressed entry of a layer; 0 where there are none."""
        return {"sliding": 0, "sparse": self.sparse_ratio, "heavy": self.heavy_ratio}[self.layer_kinds[layer]]

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> DeepseekV4Config:
        """The settings of a configuration as published, or as transformers writes it.

        The layer schedule is read from `compress_ratios` or `layer_types` and never guessed.

        Raises:
            ModelConfigError: a size is missing or not positive, parts do not fit together, or the checkpoint
                wants something this model does not do.
        """
        fields = ConfigFields(config, title="DeepSeek-V4", architecture="DeepseekV4ForCausalLM")
        for key, only in (
            ("num_key_value_heads", 1),
            ("n_shared_experts", 1),
            ("hidden_act", "silu"),
            ("scoring_func", "sqrtsoftplus"),
            ("norm_topk_prob", True),
            ("tie_word_embeddings", False),
            ("attention_bias", False),
            ("mlp_bias", False),
        ):
            fields.require(key, only)
        layers = fields.size("num_hidden_layers")
        heads, groups = fields.size("num_attention_heads"), fields.size("o_groups")
        if heads % groups:
            raise fields.fault("o_groups", f"a divisor of num_attention_heads, which is {heads}")
        head_dim, index_head_dim = fields.size("head_dim"), fields.size("index_head_dim")
        theta, compress_theta, scaling = _rope(fields)
        rates = fields.mapping("compress_rates") or {}
        experts = fields.size("n_routed_experts")
        if fields.size("num_experts_per_tok") > experts:
            raise fields.fault("num_experts_per_tok", f"at most n_routed_experts, which is {experts}")
        return cls(
            vocab_size=fields.size("vocab_size"),
            hidden_size=fields.size("hidden_size"),
            num_attention_heads=heads,
            head_dim=head_dim,
            rope_dim=_rope_dim(fields, min(head_dim, index_head_dim), head_dim),
            q_lora_rank=fields.size("q_lora_rank"),
            o_groups=groups,
            o_lora_rank=fields.size("o_lora_rank"),
            sliding_window=fields.size("sliding_window"),
            layer_kinds=_layer_kinds(fields, layers),
            sparse_ratio=int(rates.get("compressed_sparse_attention", 4)),
            heavy_ratio=int(rates.get("heavily_compressed_attention", 128)),
            index_n_heads=fields.size("index_n_heads"),
            index_head_dim=index_head_dim,
            index_topk=fields.size("index_topk"),
            n_routed_experts=experts,
            num_experts_per_tok=fields.size("num_experts_per_tok"),
            moe_intermediate_size=fields.size("moe_intermediate_size"),
            routed_scaling_factor=fields.number("routed_scaling_factor", 1.0),
            swiglu_limit=fields.number("swiglu_limit", 10.0),
            hash_layers=_hash_layers(fields, layers),
            hc_mult=fields.size("hc_mult"),
            hc_sinkhorn_iters=fields.size("hc_sinkhorn_iters"),
            hc_eps=fields.number("hc_eps", 1e-6),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            max_position_embeddings=fields.size("max_position_embeddings"),
            rope_theta=theta,
            compress_rope_theta=compress_theta,
            compress_rope_scaling=scaling,
            is_quantised=fields.mapping("quantization_config") is not None,
        )


def _layer_kinds(fields: ConfigFields, layers: int) -> tuple[LayerKind, ...]:
    """One kind a layer; entries past the backbone belong to the draft layers and are dropped."""
    key, known = "layer_types", dict[Any, LayerKind](_KINDS)
    given = fields.sequence(key)
    if given is None:
        key, known = "compress_ratios", dict[Any, LayerKind](_RATIOS)
        given = fields.sequence(key)
    if given is None:
        raise fields.fault(key, "one entry a layer, or layer_types with one")
    kinds = [known[entry] for entry in given[:layers] if entry in known]
    if len(kinds) < layers:
        raise fields.fault(key, f"{layers} entries out of {', '.join(map(str, known))}")
    return tuple(kinds)


def _hash_layers(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    names = fields.sequence("mlp_layer_types")
    if names is None:
        hashed = fields.size("num_hash_layers", at_least=0)
        return tuple(layer < hashed for layer in range(layers))
    if len(names) < layers or not set(names) <= {_HASH, _TOP_K}:
        raise fields.fault("mlp_layer_types", f"{layers} entries out of {_HASH}, {_TOP_K}")
    return tuple(name == _HASH for name in names[:layers])


def _rope_dim(fields: ConfigFields, narrowest: int, head_dim: int) -> int:
    factor = fields.value("partial_rotary_factor", None)
    nested = (fields.mapping("rope_parameters") or {}).get("main")
    if factor is None and isinstance(nested, Mapping):
        factor = nested.get("partial_rotary_factor")
    default = None if factor is None else int(head_dim * fields.number("partial_rotary_factor", factor))
    rope_dim = fields.size("qk_rope_head_dim", default)
    if rope_dim % 2 or rope_dim > narrowest:
        raise fields.fault("qk_rope_head_dim", f"an even number of at most {narrowest}")
    return rope_dim


def _rope(fields: ConfigFields) -> tuple[float, float, Mapping[str, Any] | None]:
    """Base of sliding layers, base of the others, scaling of the others."""
    nested = fields.mapping("rope_parameters") or {}
    main, compress = nested.get("main"), nested.get("compress")
    if isinstance(main, Mapping) and isinstance(compress, Mapping):
        theta, compress_theta = main.get("rope_theta", 10000.0), compress.get("rope_theta", 160000.0)
        scaling: Mapping[str, Any] | None = compress
    else:
        theta, compress_theta = 10000.0, 160000.0
        scaling = fields.mapping("rope_scaling")
    theta = fields.number("rope_theta", theta)
    compress_theta = fields.number("compress_rope_theta", compress_theta)
    if scaling is None or scaling.get("rope_type", scaling.get("type")) in (None, "default"):
        return theta, compress_theta, None
    # Cosine and sine are not multiplied with YaRN's factor: the reference leaves it out.
    settings = {"attention_factor": 1.0, "rope_type": scaling.get("type")} | dict(scaling)
    return theta, compress_theta, settings
