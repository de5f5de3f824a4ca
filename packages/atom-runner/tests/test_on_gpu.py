"""The engine on a GPU: recorded answers equal eager ones, and the cache leaves room for what was recorded."""

from __future__ import annotations

import pytest
import torch

from atom.config import CompilationConfig, Config, CUDAGraphMode, KVCacheConfig, ModelConfig
from atom.runner import LLMEngine, SamplingParams
from atom.runner.model_runner import ModelRunner
from atom.runner.verify import verify_buckets

transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

MODES = [mode for mode in CUDAGraphMode if mode is not CUDAGraphMode.NONE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random Llama."""
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=199,
        max_position_embeddings=512,
        initializer_range=0.1,
        eos_token_id=2,
    )
    path = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def prompts():
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randint(3, 199, (n,), generator=generator).tolist() for n in (1, 5, 17, 40, 70, 3, 33, 9, 64)
    ]


def engine_of(folder, mode, *, dtype="float32", num_kv_blocks=120, **compilation):
    compilation.setdefault("cudagraph_capture_sizes", [2, 8])
    return LLMEngine(
        Config(
            str(folder),
            model_config=ModelConfig(device="cuda", dtype=dtype),
            kv_cache_config=KVCacheConfig(num_kv_blocks=num_kv_blocks),
            compilation_config=CompilationConfig(cudagraph_mode=mode, **compilation),
            max_num_seqs=9,
            max_num_batched_tokens=64,
        )
    )


@pytest.mark.parametrize("batch", [1, 3, 8, 9])
@pytest.mark.parametrize("mode", MODES)
def test_recorded_answers_equal_eager_ones_around_each_bucket(folder, prompts, mode, batch):
    wish = SamplingParams(max_tokens=40, ignore_eos=True)
    plain = engine_of(folder, CUDAGraphMode.NONE).generate(prompts[:batch], [wish] * batch)
    engine = engine_of(folder, mode)
    recorded = engine.generate(prompts[:batch], [wish] * batch)
    assert [output.token_ids for output in recorded] == [output.token_ids for output in plain]
    decode = {replay.kind for replay in engine.stats().replays if replay.phase == "decode"}
    assert ("request" in decode) or batch == 9


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", MODES)
def test_every_bucket_agrees_with_eager(folder, mode, dtype):
    engine = engine_of(folder, mode, dtype=dtype, cudagraph_prefill_capture_sizes=[16, 64])
    checks = list(verify_buckets(engine.runner, engine.scheduler.blocks))
    assert checks
    assert max(check.worst for check in checks) < (1e-3 if dtype == "float32" else 0.1)


def free_bytes():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


@pytest.mark.parametrize("mode", MODES)
def test_a_cache_sized_from_memory_leaves_room_for_the_graphs(folder, prompts, mode, monkeypatch):
    told, taken = [], []
    measure, capture = ModelRunner.measure_graph_bytes, ModelRunner.capture_cudagraph

    def spying_measure(runner):
        told.append(measure(runner))
        return told[-1]

    def spying_capture(runner, progress=None):
        before = free_bytes()
        result = capture(runner, progress)
        taken.append(before - free_bytes())
        return result

    monkeypatch.setattr(ModelRunner, "measure_graph_bytes", spying_measure)
    monkeypatch.setattr(ModelRunner, "capture_cudagraph", spying_capture)
    engine = engine_of(folder, mode, num_kv_blocks=None)
    assert len(told) == len(taken) == 1
    assert taken[0] <= told[0] + 2 * 2**20  # the driver hands out memory in pages of 2 MiB
    assert engine.generate(prompts[:1], SamplingParams(max_tokens=4))[0].token_ids


def test_sampling_is_reproducible_and_not_frozen(folder, prompts):
    wish = SamplingParams(temperature=1.0, top_p=0.9, seed=4, max_tokens=30, ignore_eos=True)
    engine = engine_of(folder, CUDAGraphMode.TR_HYBRID)
    first, second = (engine.generate(prompts[:3], wish) for _ in range(2))
    assert [output.token_ids for output in first] == [output.token_ids for output in second]
    assert len(set(first[0].token_ids)) > 8
