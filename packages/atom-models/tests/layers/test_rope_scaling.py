"""Frequencies of every kind are transformers' own; settings that make no sense are errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from atom.models.layers import LayerArgumentError, rotary_frequencies

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": LLAMA3,
    "llama3-wide": {**LLAMA3, "factor": 32.0, "low_freq_factor": 0.5, "high_freq_factor": 16.0},
    "yarn": YARN,
    "yarn-betas": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn-untruncated": {**YARN, "truncate": False},
    "yarn-attention-factor": {**YARN, "attention_factor": 0.8},
    "yarn-mscale": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
    "yarn-factor-1": {**YARN, "factor": 1.0},
    "yarn-no-original": {"rope_type": "yarn", "factor": 4.0},
}


@pytest.mark.parametrize("dim", [16, 64, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_and_factor_equal_transformers(kind, dim):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_theta": 500000.0, **KINDS[kind]}
    config = LlamaConfig(
        hidden_size=2 * dim,
        num_attention_heads=2,
        max_position_embeddings=1024,
        rope_parameters=dict(parameters),
    )
    theirs = LlamaRotaryEmbedding(config)
    ours, factor = rotary_frequencies(dim, 500000.0, KINDS[kind], max_position=1024)
    torch.testing.assert_close(ours, theirs.inv_freq, atol=0, rtol=1e-6)
    assert factor == pytest.approx(theirs.attention_scaling)


def test_no_scaling_is_the_default():
    plain, factor = rotary_frequencies(64, 1e4, None, max_position=512)
    named, _ = rotary_frequencies(64, 1e4, {"rope_type": "default"}, max_position=512)
    assert torch.equal(plain, named)
    assert factor == 1.0


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"rope_type": "longrope"}, "rope_type 'longrope', supported are default, linear, llama3, yarn"),
        ({}, "rope_type None"),
        ({"rope_type": "linear"}, "factor None, expected a positive number"),
        ({"rope_type": "linear", "factor": 0}, "factor 0"),
        ({"rope_type": "yarn", "factor": float("nan")}, "factor nan"),
        ({"rope_type": "yarn", "factor": True}, "factor True"),
        ({**LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor 1.0, expected more than 1.0"),
        ({**LLAMA3, "low_freq_factor": "1"}, "low_freq_factor '1'"),
    ],
)
def test_settings_that_make_no_sense_are_named(scaling, words):
    with pytest.raises(LayerArgumentError, match=words):
        rotary_frequencies(64, 1e4, scaling, max_position=1024)


@pytest.mark.parametrize("dim", [0, 7, -2])
def test_an_odd_dimension_is_refused(dim):
    with pytest.raises(LayerArgumentError, match="even number"):
        rotary_frequencies(dim, 1e4, None, max_position=8)
