"""DeepSeek-V4 through the engine: slots, chunks, preemption, levels and graph modes change no answer."""

from __future__ import annotations

import pytest
import torch

from atom.config import CompilationConfig, Config, CUDAGraphMode, KVCacheConfig, ModelConfig
from atom.graphs import token_graphs
from atom.runner import LLMEngine, SamplingParams

transformers = pytest.importorskip("transformers")

MAX_TOKENS = 24
WISH = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
YARN = {
    "rope_type": "yarn",
    "factor": 16,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
}


@pytest.fixture(scope="module")
def prompts():
    """Shorter and longer than the window, and over the edges of 4 and 128 tokens."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(64, (n,), generator=generator).tolist() for n in (5, 150, 30, 118)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory, prompts):
    """A tiny random model with a layer of each kind, and transformers' own greedy answers."""
    config = transformers.DeepseekV4Config(
        vocab_size=64,
        hidden_size=64,
        moe_intermediate_size=32,
        num_attention_heads=4,
        head_dim=32,
        q_lora_rank=32,
        num_experts_per_tok=2,
        n_routed_experts=6,
        o_groups=2,
        o_lora_rank=16,
        index_n_heads=16,
        index_head_dim=32,
        index_topk=8,
        num_hash_layers=1,
        qk_rope_head_dim=8,
        max_position_embeddings=512,
        sliding_window=16,
        rope_scaling=YARN,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
    )
    model = transformers.DeepseekV4ForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.2, generator=generator)
    for name, buffer in model.named_buffers():
        if name.endswith("tid2eid"):
            buffer.random_(0, 6, generator=generator)
    folder = tmp_path_factory.mktemp("deepseek_v4")
    model.save_pretrained(folder)
    answers = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(MAX_TOKENS):
            with torch.inference_mode():
                logits = model(torch.tensor([ids]), use_cache=False).logits
            ids.append(int(logits[0, -1].argmax()))
        answers.append(ids[len(prompt) :])
    return folder, answers


def engine_of(folder, *, level=0, mode="NONE", index="model", blocks=16, tokens=64, seqs=4):
    return LLMEngine(
        Config(
            str(folder),
            model_config=ModelConfig(device="cpu", dtype="float32", max_model_len=384),
            kv_cache_config=KVCacheConfig(block_size=128, num_kv_blocks=blocks, index_cache_dtype=index),
            compilation_config=CompilationConfig(
                level=level,
                use_inductor=False,
                cudagraph_mode=mode,
                cudagraph_capture_sizes=None if mode == "NONE" else [1, 4],
            ),
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
        )
    )


def answers_of(engine, prompts):
    return [output.token_ids for output in engine.generate(prompts, WISH)]


@pytest.mark.parametrize("tokens", [7, 64, 512], ids=["chunks of 7", "chunks of 64", "one shot"])
def test_answers_equal_transformers_however_prompts_are_cut(saved, prompts, tokens):
    folder, expected = saved
    assert answers_of(engine_of(folder, tokens=tokens), prompts) == expected


def test_a_request_that_was_preempted_goes_on_as_if_it_had_not_been(saved, prompts):
    folder, expected = saved
    # One block each to begin with, and soon another.
    near = [prompts[3], *(prompts[1][start : start + 118] for start in (0, 10, 20))]
    wanted = answers_of(engine_of(folder), near)
    assert wanted[0] == expected[3]
    engine = engine_of(folder, blocks=5, tokens=512)
    assert answers_of(engine, near) == wanted
    assert engine.stats().preemptions > 0
    assert engine.stats().kv_blocks_free == engine.stats().kv_blocks


def test_slots_are_used_again_and_no_prefix_is_taken_over_without_its_state(saved, prompts):
    folder, expected = saved
    engine = engine_of(folder, seqs=2)
    for _ in range(2):
        assert answers_of(engine, prompts) == expected
    assert engine.stats().reused_prompt_tokens == 0


@pytest.mark.parametrize("index", ["model", "fp8", "fp4"])
@pytest.mark.parametrize("mode", [mode.name for mode in CUDAGraphMode if mode is not CUDAGraphMode.NONE])
def test_every_graph_mode_gives_the_eager_answers(saved, prompts, mode, index):
    folder, expected = saved
    eager = answers_of(engine_of(folder, index=index), prompts)
    engine = engine_of(folder, mode=mode, index=index)
    assert answers_of(engine, prompts) == eager
    assert index != "model" or eager == expected
    graphs = token_graphs(engine.runner.model).values()
    assert len(graphs) == (1 if CUDAGraphMode[mode].uses_tr_hybrid() else 0)
    for graph in graphs:
        regions = {region.name for recording in graph.recordings().values() for region in recording.regions}
        assert {name.rpartition(".")[2] for name in regions} == (
            {"_fp4_band_logits"} if index == "fp4" else set()
        )
        assert graph.captured_sizes("decode") == [1, 4]
        assert graph.captured_sizes("prefill") == []


@pytest.mark.parametrize(("level", "index"), [(1, "model"), (2, "model"), (3, "fp4")])
def test_every_level_gives_the_same_answers(saved, prompts, level, index):
    folder, _ = saved
    wanted = answers_of(engine_of(folder, index=index), prompts[:2])
    recorded = engine_of(folder, level=level, mode="TR_HYBRID", index=index)
    assert answers_of(recorded, prompts[:2]) == wanted
