from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import pytest
import torch

from atom.models.checkpoint.gguf import open_gguf
from atom.models.checkpoint.gguf_fields import shortest
from atom.models.errors import CorruptCheckpointError, UnsupportedCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_the_real_files_configuration(smollm2_path: Path) -> None:
    checkpoint = open_gguf(smollm2_path)
    assert checkpoint.config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "rope_scaling": None,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "bfloat16",
        "eos_token_id": [2],
        "bos_token_id": 1,
    }


def test_float32_numbers_get_their_decimal_form_back() -> None:
    assert shortest(9.999999747378752e-06) == 1e-5
    assert shortest(500000.0) == 500000.0


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (lambda w: w.add_expert_count(8), "llama.expert_count is 8"),
        (lambda w: w.add_logit_scale(0.25), "llama.logit_scale is 0.25"),
        (lambda w: w.add_causal_attention(False), "llama.attention.causal is False"),
        (lambda w: w.add_final_logit_softcapping(30.0), "llama.final_logit_softcapping is 30.0"),
    ],
)
def test_settings_that_would_compute_something_else_are_refused(
    extra: Callable[[gguf.GGUFWriter], None],
    message: str,
    save_llama: Callable[..., Any],
    write_gguf: Callable[..., Path],
) -> None:
    _, fields, weights = save_llama()
    with pytest.raises(UnsupportedCheckpointError, match=message):
        open_gguf(write_gguf(fields, weights, extra=extra))


def test_partial_rotation_and_windows_are_passed_on(
    save_llama: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    _, fields, weights = save_llama()

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_dimension_count(4)
        writer.add_sliding_window(64)

    config = open_gguf(write_gguf(fields, weights, extra=extra)).config
    assert config["partial_rotary_factor"] == 0.5
    assert config["sliding_window"] == 64


def test_another_architecture_is_refused_with_those_there_are(
    save_llama: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    _, fields, weights = save_llama()
    path = write_gguf(fields, weights, architecture="mamba")
    with pytest.raises(
        UnsupportedCheckpointError, match="'mamba' is not supported; supported are llama, qwen2, qwen3"
    ):
        open_gguf(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 8, "num_key_value_heads": 3}, "8 query heads, 3 key heads"),
        ({"num_attention_heads": 0}, "llama.attention.head_count is 0, expected a positive whole number"),
        ({"hidden_size": 32}, r"'token_embd.weight' is \[96, 64\], expected rows of 32"),
        ({"head_dim": 7}, "key heads of 7 do not make an attention layer"),
        ({"rms_norm_eps": float("nan")}, "layer_norm_rms_epsilon is nan, expected a positive number"),
        ({"rope_theta": -1.0}, "rope.freq_base is -1.0, expected a positive number"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(
    change: dict[str, Any], message: str, gguf_bytes: Any, tmp_path: Path
) -> None:
    fields = {
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        **change,
    }
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_feed_forward_length(64)
    writer.add_embedding_length(fields["hidden_size"])
    writer.add_head_count(fields["num_attention_heads"])
    writer.add_head_count_kv(fields["num_key_value_heads"])
    writer.add_key_length(fields["head_dim"])
    writer.add_layer_norm_rms_eps(fields["rms_norm_eps"])
    writer.add_rope_freq_base(fields["rope_theta"])
    writer.add_tensor("token_embd.weight", torch.zeros(96, 64).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CorruptCheckpointError, match=message):
        open_gguf(path)


def test_missing_metadata_and_embedding_are_named(gguf_bytes: Any, tmp_path: Path) -> None:
    path = tmp_path / "bare.gguf"
    path.write_bytes(gguf_bytes().build())
    with pytest.raises(CorruptCheckpointError, match=r"general\.architecture is None"):
        open_gguf(path)
    path.write_bytes(gguf_bytes().string("general.architecture", "llama").build())
    with pytest.raises(CorruptCheckpointError, match=r"llama\.embedding_length is missing"):
        open_gguf(path)


def test_head_counts_listed_a_layer_must_agree(gguf_bytes: Any, tmp_path: Path) -> None:
    import struct

    def file(counts: list[int]) -> bytes:
        listed = struct.pack(f"<IQ{len(counts)}I", 4, len(counts), *counts)
        made = gguf_bytes().string("general.architecture", "llama").uint32("llama.embedding_length", 64)
        made.pair("llama.attention.head_count", 9, listed)
        built: bytes = made.build()
        return built

    path = tmp_path / "listed.gguf"
    path.write_bytes(file([4, 8]))
    with pytest.raises(CorruptCheckpointError, match="the same for all layers"):
        open_gguf(path)
    path.write_bytes(file([4, 4]))
    with pytest.raises(CorruptCheckpointError, match="context_length is missing"):
        open_gguf(path)
