"""Checkpoint names find their tensors; what does not fit is an error."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from atom.config import Config
from atom.models.errors import WeightsError
from atom.models.llama import LlamaConfig, LlamaForCausalLM, weight_destinations


def empty(**fields) -> LlamaForCausalLM:
    config = LlamaConfig.from_hf(
        {
            "vocab_size": 20,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            **fields,
        }
    )
    return LlamaForCausalLM(
        config, atom_config=Config("none"), dtype=torch.float32, device=torch.device("cpu")
    )


def test_every_name_of_transformers_has_a_destination_of_its_shape():
    from transformers import LlamaConfig as HfConfig
    from transformers import LlamaForCausalLM as HfLlama

    for fields in ({}, {"attention_bias": True, "mlp_bias": True}, {"tie_word_embeddings": True}):
        model = empty(**fields)
        hf = HfLlama(
            HfConfig(
                vocab_size=20,
                hidden_size=16,
                intermediate_size=24,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                **fields,
            )
        )
        theirs = {name: tuple(parameter.shape) for name, parameter in hf.named_parameters()}
        ours = {name: tuple(tensor.shape) for name, tensor in weight_destinations(model).items()}
        assert ours == theirs


def test_parts_of_a_fused_layer_are_filled_in_place():
    model = empty()
    destinations = weight_destinations(model)
    for value, part in enumerate("qkv"):
        destinations[f"model.layers.1.self_attn.{part}_proj.weight"].fill_(value)
    fused = model.model.layers[1].self_attn.qkv_proj.weight
    assert fused[:, 0].tolist() == [0] * 16 + [1] * 8 + [2] * 8


@pytest.fixture
def saved(save_llama):
    return save_llama()


def edit(saved, change) -> None:
    file = saved.path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def test_a_tensor_too_few_is_named(saved):
    edit(saved, lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.weight"))
    with pytest.raises(WeightsError, match=r"missing 'model.layers.1.self_attn.k_proj.weight'"):
        saved.load()


def test_a_tensor_of_another_shape_is_named(saved):
    edit(saved, lambda tensors: tensors.update({"model.norm.weight": torch.ones(63)}))
    with pytest.raises(WeightsError, match=r"'model.norm.weight' is \[63\] but the model needs \[64\]"):
        saved.load()


def test_a_tensor_nobody_wants_is_named(saved):
    edit(saved, lambda tensors: tensors.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(8)}))
    with pytest.raises(WeightsError, match=r"unexpected 'model.layers.0.self_attn.q_norm.weight'"):
        saved.load()


def test_frequencies_that_older_exporters_saved_are_passed_over(saved):
    edit(
        saved, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    )
    assert saved.load() is not None


def test_a_copy_of_the_embedding_beside_a_tied_head_is_passed_over(save_llama):
    saved = save_llama(tie_word_embeddings=True)
    edit(saved, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(160, 64)}))
    model = saved.load()
    assert model.compute_logits(torch.randn(1, 64)).any()


def test_progress_hears_every_byte_and_weights_are_packed_after(saved):
    heard = []
    model = saved.load(dtype=torch.float32, progress=lambda done, total: heard.append((done, total)))
    assert heard[-1][0] == heard[-1][1] > 0
    assert sorted(heard) == heard
    names = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    assert not any(name.endswith(("_proj", "lm_head")) for name in names)


def test_float32_checkpoints_are_never_rounded(saved):
    assert saved.load().lm_head._packed.name in ("float32 panels", "oneDNN blocks")  # without a C compiler
