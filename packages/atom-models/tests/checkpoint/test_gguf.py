"""The same weights come out of a GGUF file as went into the safetensors file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch

from atom.models.checkpoint import open_checkpoint
from atom.models.checkpoint.gguf import open_gguf, unpermute_rows
from atom.models.errors import CorruptCheckpointError, UnsupportedCheckpointError, WeightsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Q8_0 = gguf.GGMLQuantizationType.Q8_0
F16, BF16 = gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("key_heads", [2, 8, 1])
def test_float32_weights_are_equal_from_either_format(
    key_heads: int, tied: bool, save_llama: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    folder, fields, weights = save_llama(num_key_value_heads=key_heads, tie_word_embeddings=tied)
    from_folder = open_checkpoint(folder)
    from_gguf = open_checkpoint(write_gguf(fields, weights))
    assert from_folder is not None
    assert from_gguf is not None
    assert set(from_gguf.tensors) == set(from_folder.tensors)
    assert ("lm_head.weight" in from_gguf.tensors) is not tied
    for name, info in from_folder.tensors.items():
        assert torch.equal(from_folder.read(name), weights[name]), name
        assert torch.equal(from_gguf.read(name), weights[name]), name
        assert from_gguf.tensors[name].shape == info.shape


def test_biases_of_queries_and_keys_are_put_back_in_order_too(
    save_llama: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    _, fields, weights = save_llama(attention_bias=True, mlp_bias=True)
    checkpoint = open_gguf(write_gguf(fields, weights))
    for name, expected in weights.items():
        assert torch.equal(checkpoint.read(name), expected), name
    assert checkpoint.config["attention_bias"] is True
    assert checkpoint.config["mlp_bias"] is True


def test_rows_of_a_qwen_are_left_alone(
    save_llama: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    _, fields, weights = save_llama(attention_bias=True)
    checkpoint = open_gguf(write_gguf(fields, weights, architecture="qwen2"))
    assert checkpoint.architecture == "Qwen2ForCausalLM"
    for name, expected in weights.items():
        assert torch.equal(checkpoint.read(name), expected), name


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("key_heads", [2, 8, 1])
def test_q8_0_weights_stay_within_half_a_step_of_their_block(
    key_heads: int, tied: bool, save_llama: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    _, fields, weights = save_llama(num_key_value_heads=key_heads, tie_word_embeddings=tied)
    checkpoint = open_gguf(write_gguf(fields, weights, quantisation=Q8_0))
    for name, info in checkpoint.tensors.items():
        expected, got = weights[name], checkpoint.read(name)
        if info.dtype == "float32":
            assert torch.equal(got, expected)
            continue
        assert info.dtype == "Q8_0"
        assert info.nbytes == expected.numel() // 32 * 34
        largest = expected.view(-1, 32).abs().amax(dim=1, keepdim=True)
        # Half a step of 1/127 of the largest, and the scale's own rounding to 11 bits times up to 127 steps.
        allowed = largest * (0.5 / 127 + 2.0**-11)
        assert ((got - expected).view(-1, 32).abs() <= allowed).all(), name
        # Blocks lie within rows, so putting rows in order and rounding may be swapped without a difference.
        rounded = gguf.quants.dequantize(gguf.quants.quantize(expected.numpy(), Q8_0), Q8_0)
        assert np.array_equal(got.numpy(), rounded), name


@pytest.mark.parametrize(("quantisation", "dtype"), [(F16, torch.float16), (BF16, torch.bfloat16)])
def test_half_precision_is_kept_unless_another_dtype_is_asked_for(
    quantisation: gguf.GGMLQuantizationType,
    dtype: torch.dtype,
    save_llama: Callable[..., Any],
    write_gguf: Callable[..., Path],
) -> None:
    _, fields, weights = save_llama()
    checkpoint = open_gguf(write_gguf(fields, weights, quantisation=quantisation))
    name = "model.layers.1.self_attn.k_proj.weight"
    assert checkpoint.dtype == str(dtype).removeprefix("torch.")
    assert checkpoint.read(name).dtype == dtype
    assert torch.equal(checkpoint.read(name), weights[name].to(dtype))
    assert torch.equal(checkpoint.read(name, torch.float32), weights[name].to(dtype).float())


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("key_heads", [2, 8, 1])
def test_a_model_of_the_weights_gives_the_logits_of_the_original(
    key_heads: int, tied: bool, save_llama: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    from transformers import LlamaForCausalLM

    folder, fields, weights = save_llama(num_key_value_heads=key_heads, tie_word_embeddings=tied)
    original = LlamaForCausalLM.from_pretrained(folder)
    ids = torch.arange(20)[None] * 3
    expected = original(ids).logits.detach()

    def logits(path: Path) -> torch.Tensor:
        checkpoint = open_gguf(path)
        rebuilt = LlamaForCausalLM(original.config)
        loaded = {name: checkpoint.read(name) for name in checkpoint.tensors}
        rebuilt.load_state_dict(
            loaded | ({"lm_head.weight": loaded["model.embed_tokens.weight"]} if tied else {})
        )
        result: torch.Tensor = rebuilt(ids).logits.detach()
        return result

    assert torch.equal(logits(write_gguf(fields, weights)), expected)
    # Eight bits a weight cost 1% of the logits' spread here, keys ordered by the wrong head count 8%.
    rounded = logits(write_gguf(fields, weights, name="q8.gguf", quantisation=Q8_0))
    relative = float((rounded - expected).std() / expected.std())
    assert 0 < relative < 0.02


def test_the_configuration_is_that_of_the_folder(
    save_llama: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    folder, fields, weights = save_llama()
    from_folder = open_checkpoint(folder)
    from_gguf = open_gguf(write_gguf(fields, weights))
    assert from_folder is not None
    shared = set(from_gguf.config) - {"eos_token_id", "bos_token_id"}
    assert {key: from_gguf.config[key] for key in shared} == {key: from_folder.config[key] for key in shared}
    assert (from_gguf.vocab_size, from_gguf.max_model_len, from_gguf.dtype) == (96, 128, "float32")


def test_unpermuting_undoes_the_converters_order() -> None:
    rows = np.arange(2 * 6 * 3).reshape(12, 3)
    stored = rows.reshape(2, 2, 3, 3).swapaxes(1, 2).reshape(12, 3)
    assert stored[:4, 0].tolist() == [0, 9, 3, 12]  # row 0, row 3, row 1, row 4 of the first head
    assert np.array_equal(unpermute_rows(stored, heads=2), rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reading_into_memory_that_is_there_equals_reading(
    dtype: torch.dtype, save_llama: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    folder, fields, weights = save_llama()
    for checkpoint in (open_gguf(write_gguf(fields, weights, quantisation=Q8_0)), open_checkpoint(folder)):
        assert checkpoint is not None
        for name, info in checkpoint.tensors.items():
            out = torch.full(info.shape, torch.nan, dtype=dtype)
            checkpoint.read_into(name, out)
            assert torch.equal(out, checkpoint.read(name, dtype)), name
        with pytest.raises(
            WeightsError, match=r"'model\.norm\.weight' is \[64\], which does not fill \[8, 8\]"
        ):
            checkpoint.read_into("model.norm.weight", torch.empty(8, 8))
        with pytest.raises(WeightsError, match="does not fill"):
            checkpoint.read_into("model.norm.weight", torch.empty(128)[::2])


def test_reading_leaves_the_file_alone(
    save_llama: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    _, fields, weights = save_llama()
    path = write_gguf(fields, weights)
    before = path.read_bytes()
    checkpoint = open_gguf(path)
    for name in checkpoint.tensors:
        checkpoint.read(name).zero_()
    assert path.read_bytes() == before
    assert torch.equal(checkpoint.read("model.norm.weight"), weights["model.norm.weight"])


def test_every_real_tensor_equals_the_gguf_packages_reading(smollm2_path: Path) -> None:
    checkpoint = open_gguf(smollm2_path)
    reader = gguf.GGUFReader(smollm2_path)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    assert len(checkpoint.tensors) == len(stored) == 272
    for hf_name, gguf_name, heads in (
        ("model.embed_tokens.weight", "token_embd.weight", None),
        ("model.norm.weight", "output_norm.weight", None),
        ("model.layers.29.mlp.down_proj.weight", "blk.29.ffn_down.weight", None),
        ("model.layers.7.self_attn.q_proj.weight", "blk.7.attn_q.weight", 9),
        ("model.layers.7.self_attn.k_proj.weight", "blk.7.attn_k.weight", 3),
    ):
        values = gguf.quants.dequantize(stored[gguf_name].data, stored[gguf_name].tensor_type)
        expected = values if heads is None else unpermute_rows(values, heads)
        assert np.array_equal(checkpoint.read(hf_name).numpy(), expected), hf_name


def test_one_part_of_a_split_file_says_how_to_join_it(
    save_llama: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    _, fields, weights = save_llama()
    path = write_gguf(fields, weights, extra=lambda writer: writer.add_uint16("split.count", 3))
    with pytest.raises(UnsupportedCheckpointError, match=r"one of 3 parts.*gguf-split --merge"):
        open_gguf(path)


def test_rows_that_are_no_multiple_of_the_heads_are_refused(
    save_llama: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    _, fields, weights = save_llama(num_key_value_heads=8)
    for name in ("k_proj", "v_proj"):
        weights[f"model.layers.0.self_attn.{name}.weight"] = torch.zeros(24, 64)
    with pytest.raises(
        CorruptCheckpointError, match=r"'blk\.0\.attn_k\.weight' has 24 rows, no multiple of 2 x 8 heads"
    ):
        open_gguf(write_gguf(fields, weights))


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.touch()
    with pytest.raises(CorruptCheckpointError, match=r"empty\.gguf: the file is empty"):
        open_gguf(path)
