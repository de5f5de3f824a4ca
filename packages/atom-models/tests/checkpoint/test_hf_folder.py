from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from atom.models.checkpoint.hf_folder import open_hf_folder
from atom.models.errors import CorruptCheckpointError, ModelConfigError, WeightsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def test_a_folder_that_transformers_saved(save_llama: Callable[..., Any]) -> None:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    folder, _, weights = save_llama(rope_parameters=scaling)
    checkpoint = open_hf_folder(folder)
    assert (checkpoint.format, checkpoint.path, checkpoint.architecture) == (
        "safetensors",
        folder,
        "LlamaForCausalLM",
    )
    assert (checkpoint.vocab_size, checkpoint.max_model_len, checkpoint.dtype) == (96, 128, "float32")
    assert checkpoint.nbytes == sum(tensor.nbytes for tensor in weights.values())
    assert checkpoint.config["rope_theta"] == 5e5
    assert checkpoint.config["rope_scaling"] == {k: v for k, v in scaling.items() if k != "rope_theta"}
    assert checkpoint.generation.eos_token_ids == (2,)
    assert checkpoint.tokenizer is None
    assert checkpoint.quantization is None


@pytest.mark.parametrize("tied", [False, True])
def test_shards_give_the_same_weights_as_one_file(tied: bool, save_llama: Callable[..., Any]) -> None:
    from transformers import LlamaForCausalLM

    folder, _, weights = save_llama(tie_word_embeddings=tied)
    sharded = folder.with_name("sharded")
    LlamaForCausalLM.from_pretrained(folder).save_pretrained(sharded, max_shard_size="60KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    checkpoint = open_hf_folder(sharded)
    assert ("lm_head.weight" in checkpoint.tensors) is not tied
    for name in checkpoint.tensors:
        assert torch.equal(checkpoint.read(name), weights[name]), name


def test_the_dtype_is_what_the_weights_are_in_when_nothing_says_it(save_llama: Callable[..., Any]) -> None:
    from safetensors.torch import save_file

    folder, _, weights = save_llama()
    half = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    save_file({**half, "model.norm.weight": weights["model.norm.weight"]}, folder / "model.safetensors")
    edit(folder, dtype=None)
    assert open_hf_folder(folder).dtype == "bfloat16"


def test_a_quantisation_in_the_configuration_is_named(save_llama: Callable[..., Any]) -> None:
    folder, _, _ = save_llama()
    edit(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    assert open_hf_folder(folder).quantization == "gptq"


def test_generation_settings_come_from_their_own_file_first(save_llama: Callable[..., Any]) -> None:
    folder, _, _ = save_llama()
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [7, 8], "do_sample": True, "temperature": 0.7})
    )
    generation = open_hf_folder(folder).generation
    assert generation.eos_token_ids == (7, 8)
    assert generation.bos_token_id == 1
    assert generation.sampling == {"temperature": 0.7}


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_damaged_file_is_named(name: str, save_llama: Callable[..., Any]) -> None:
    folder, _, _ = save_llama()
    (folder / name).write_text("{")
    with pytest.raises(CorruptCheckpointError, match=f"{name}: file is not valid JSON"):
        open_hf_folder(folder)


def test_a_damaged_tokenizer_shows_when_it_is_asked_for(save_llama: Callable[..., Any]) -> None:
    folder, _, _ = save_llama()
    (folder / "tokenizer.json").write_text("{}")
    checkpoint = open_hf_folder(folder)
    with pytest.raises(CorruptCheckpointError, match=r"tokenizer\.json: no object 'model'"):
        _ = checkpoint.tokenizer


@pytest.mark.parametrize("field", ["vocab_size", "max_position_embeddings"])
@pytest.mark.parametrize("value", [0, -1, "many", 1.5, True])
def test_a_size_that_is_none_is_named(field: str, value: Any, save_llama: Callable[..., Any]) -> None:
    folder, _, _ = save_llama()
    edit(folder, **{field: value})
    checkpoint = open_hf_folder(folder)
    with pytest.raises(
        ModelConfigError, match=f"configuration field {field} is .*expected a positive whole number"
    ):
        _ = (checkpoint.vocab_size, checkpoint.max_model_len)


def test_an_unknown_tensor_is_an_error_of_ours(save_llama: Callable[..., Any]) -> None:
    folder, _, _ = save_llama()
    with pytest.raises(WeightsError, match=r"hf: no tensor 'model\.nothing' in this checkpoint"):
        open_hf_folder(folder).read("model.nothing")
