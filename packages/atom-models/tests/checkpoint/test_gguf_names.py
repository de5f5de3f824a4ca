from __future__ import annotations

from pathlib import Path

import pytest

from atom.models.checkpoint.gguf_names import hf_name, permuted_heads
from atom.models.errors import UnsupportedCheckpointError

PATH = Path("some.gguf")


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"),
        ("blk.31.attn_k.bias", "model.layers.31.self_attn.k_proj.bias"),
        ("blk.5.attn_output.weight", "model.layers.5.self_attn.o_proj.weight"),
        ("blk.5.ffn_norm.weight", "model.layers.5.post_attention_layernorm.weight"),
        ("blk.5.attn_k_norm.weight", "model.layers.5.self_attn.k_norm.weight"),
    ],
)
def test_gguf_names_become_hugging_face_names(stored: str, expected: str) -> None:
    assert hf_name(PATH, stored) == expected


@pytest.mark.parametrize(
    "name", ["blk.01.attn_q.weight", "blk.0.ffn_gate_exps.weight", "output", "blk.x.attn_q.weight"]
)
def test_a_tensor_of_another_kind_of_model_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedCheckpointError, match=name.replace(".", r"\.")):
        hf_name(PATH, name)


def test_queries_and_keys_have_their_own_head_counts() -> None:
    counts = {"query_heads": 9, "key_heads": 3}
    assert permuted_heads("blk.0.attn_q.weight", **counts) == 9
    assert permuted_heads("blk.0.attn_k.bias", **counts) == 3
    for other in ("blk.0.attn_v.weight", "blk.0.attn_q_norm.weight", "output.weight"):
        assert permuted_heads(other, **counts) is None
