"""What a configuration may leave out, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from atom.models.errors import ModelConfigError
from atom.models.llama import LlamaConfig

FIELDS: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}


def test_what_is_left_out_has_the_public_defaults():
    config = LlamaConfig.from_hf(FIELDS)
    assert (config.num_key_value_heads, config.head_dim) == (8, 8)
    assert (config.max_position_embeddings, config.rms_norm_eps, config.rope_theta) == (2048, 1e-6, 10000.0)
    assert config.rope_scaling is None
    assert not any((config.tie_word_embeddings, config.attention_bias, config.mlp_bias))


def test_null_is_left_out():
    config = LlamaConfig.from_hf(
        {**FIELDS, "num_key_value_heads": None, "head_dim": None, "rope_scaling": None}
    )
    assert (config.num_key_value_heads, config.head_dim) == (8, 8)


def test_defaults_are_those_of_transformers():
    from transformers import LlamaConfig as HfConfig

    theirs, ours = HfConfig(**FIELDS), LlamaConfig.from_hf(FIELDS)
    for name in (
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hidden_size": None}, "hidden_size is None, expected a positive whole number"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"intermediate_size": "96"}, "intermediate_size is '96'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, expected a divisor of num_attention_heads"),
        ({"head_dim": 7}, "head_dim is 7, expected an even number"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0, expected a positive number"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, expected 1"),
        ({"sliding_window": 128}, "sliding_window is 128, expected None"),
        ({"rope_parameters": {"full": {}}}, "rope_parameters is"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', expected true or false"),
        ({"rope_scaling": 4}, "rope_scaling is 4, expected an object or null"),
    ],
)
def test_a_field_that_fits_no_llama_is_named_in_one_line(fields, words):
    with pytest.raises(ModelConfigError, match=words) as caught:
        LlamaConfig.from_hf({**FIELDS, **fields})
    assert "\n" not in str(caught.value)
