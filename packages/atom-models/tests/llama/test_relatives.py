"""Models of a Llama's shape, dense or not: logits and ids are transformers' own, recorded ones too."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from atom.graphs import token_graphs
from atom.models.errors import CheckpointError, ModelConfigError, WeightsError
from atom.models.mistral import MistralConfig
from atom.models.mixtral import MixtralConfig
from atom.models.qwen3 import Qwen3Config
from atom.models.qwen3_moe import Qwen3MoeConfig

PROMPTS = [list(range(3, 40)), [7], [90, 4, 4, 61, 12], list(range(60, 140, 3))]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_logits_and_greedy_ids_equal_transformers(save_relative, step_loop, generate, tied):
    saved = save_relative(tie_word_embeddings=tied)
    model = saved.load(max_model_len=128)
    logits = step_loop(model).step(list(enumerate(PROMPTS)))
    for ours, prompt in zip(logits, PROMPTS, strict=True):
        theirs = saved.reference_logits(prompt)[-1]
        assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()
    answers = generate(step_loop(model), PROMPTS, 12)
    assert answers == [saved.reference_greedy(prompt, 12) for prompt in PROMPTS]
    assert generate(step_loop(model), PROMPTS, 12, bucket=(4, 0)) == answers


def test_a_prompt_in_chunks_gives_the_logits_of_one_shot(save_relative, step_loop):
    saved = save_relative()
    loop = step_loop(saved.load(max_model_len=128))
    for begin in range(0, 37, 5):
        logits = loop.step([(0, PROMPTS[0][begin : begin + 5])])
    theirs = saved.reference_logits(PROMPTS[0])[-1]
    assert (logits[0] - theirs).abs().max() <= 1e-4 * theirs.abs().max()


def test_the_decoder_is_the_recording_unit_and_replays_equal_eager(save_relative, step_loop):
    model = save_relative().load(max_model_len=128)
    work = [(0, [5]), (1, [8])]
    eager = step_loop(model)
    eager.step(list(enumerate(PROMPTS[:2])))
    wanted = eager.step(work, rows=4)
    loop = step_loop(model)
    loop.step(list(enumerate(PROMPTS[:2])))
    lens = list(loop.lens)
    loop.step(work, rows=4, tr_graph="record")
    loop.lens = lens
    assert torch.equal(loop.step(work, rows=4, tr_graph="replay"), wanted)
    assert list(token_graphs(model)) == ["model"]


def test_a_window_is_refused_where_a_sequence_could_outgrow_it(save_relative):
    saved = save_relative(sliding_window=64, use_sliding_window=True, max_window_layers=0)
    with pytest.raises(ModelConfigError, match=r"sliding_window is 64|use_sliding_window is True"):
        saved.load()


@pytest.mark.parametrize("length", [64, 63])
def test_a_model_runs_within_its_window(save_relative, length):
    saved = save_relative(sliding_window=64)
    assert saved.load(max_model_len=length).config.num_hidden_layers == 2


def test_tensors_that_do_not_fit_are_named(save_relative):
    saved = save_relative()
    path = saved.path / "model.safetensors"
    tensors = load_file(path)
    gone = next(name for name in tensors if ("layers.1" in name and "down" in name) or ".w2." in name)
    kept = {name: tensor for name, tensor in tensors.items() if name != gone}
    save_file({**kept, "model.layers.0.extra.weight": torch.zeros(3)}, path)
    with pytest.raises(WeightsError, match=rf"missing '{gone}'.*unexpected 'model.layers.0.extra.weight'"):
        saved.load(max_model_len=128)
    save_file({**kept, gone: tensors[gone][:, :-1].contiguous()}, path)
    with pytest.raises(WeightsError, match=rf"wrong shape: '{gone}' is"):
        saved.load(max_model_len=128)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        saved.load(max_model_len=128)


def test_configurations_say_what_is_wrong(save_relative):
    saved = save_relative()
    config = json.loads((saved.path / "config.json").read_text())
    with pytest.raises(ModelConfigError, match="Mistral configuration: sliding_window is 'wide'"):
        MistralConfig.from_hf({**config, "rope_parameters": None, "sliding_window": "wide"})
    few = {"num_experts": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 8}
    with pytest.raises(ModelConfigError, match="num_experts_per_tok is 3, expected at most num_experts"):
        Qwen3MoeConfig.from_hf({**config, "rope_parameters": None, "layer_types": None, **few})
    with pytest.raises(ModelConfigError, match="num_experts_per_tok is 3, expected at most num_local_exp"):
        MixtralConfig.from_hf({**config, "rope_parameters": None, "num_local_experts": 2, **few})
    with pytest.raises(ModelConfigError, match="Qwen3 configuration: layer_types is"):
        Qwen3Config.from_hf({**config, "rope_parameters": None, "layer_types": ["sliding_attention"]})
