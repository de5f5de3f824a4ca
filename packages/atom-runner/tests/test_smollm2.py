"""The default model, answer by answer what transformers says (see data/make_smollm2_greedy.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atom.config import CompilationConfig, Config, CUDAGraphMode, KVCacheConfig, ModelConfig
from atom.runner import LLMEngine, ModelLoadError, SamplingParams
from atom.runner.loader import default_checkpoint, installed_providers
from atom.runner.verify import verify_buckets

DATA = json.loads((Path(__file__).parent / "data" / "smollm2_greedy.json").read_text(encoding="utf-8"))
PROMPTS = [row["prompt_token_ids"] for row in DATA["rows"]]
EXPECTED = [row["token_ids"] for row in DATA["rows"]]
GREEDY = SamplingParams(max_tokens=DATA["max_new_tokens"])

try:
    MODEL = str(default_checkpoint())
    installed_providers()
except ModelLoadError as error:
    pytest.skip(str(error), allow_module_level=True)

pytestmark = pytest.mark.slow


def engine_of(*, num_kv_blocks, compilation=None, dtype="float32", **settings):
    return LLMEngine(
        Config(
            MODEL,
            model_config=ModelConfig(device="cpu", dtype=dtype, max_model_len=512),
            kv_cache_config=KVCacheConfig(num_kv_blocks=num_kv_blocks),
            compilation_config=compilation or CompilationConfig(),
            **settings,
        )
    )


def test_20_answers_of_64_tokens_run_8_at_a_time_in_a_small_cache():
    engine = engine_of(num_kv_blocks=32, max_num_seqs=8, max_num_batched_tokens=48)
    outputs = engine.generate(PROMPTS, GREEDY)
    assert [output.token_ids for output in outputs] == EXPECTED
    stats = engine.stats()
    assert stats.preemptions > 0  # 512 tokens of cache for up to 8 sequences of 70 to 300
    assert stats.prefill.steps > 20
    assert stats.kv_blocks_free == stats.kv_blocks
    # Once more, now that the cache knows some beginnings.
    assert [output.token_ids for output in engine.generate(PROMPTS[:4], GREEDY)] == EXPECTED[:4]
    assert engine.stats().reused_prompt_tokens > 0
    assert outputs[0].text is not None
    assert outputs[0].text.startswith("The capital of France is Paris.")


def test_the_default_number_format_keeps_the_first_16_tokens_of_20_answers():
    engine = engine_of(num_kv_blocks=400, dtype="auto", max_num_seqs=20)
    outputs = engine.generate(PROMPTS, SamplingParams(max_tokens=16))
    assert [output.token_ids for output in outputs] == [answer[:16] for answer in EXPECTED]


@pytest.mark.parametrize("mode", list(CUDAGraphMode))
def test_the_answers_are_the_same_in_every_graph_mode_around_each_bucket(mode):
    engine = engine_of(
        num_kv_blocks=200,
        max_num_seqs=9,
        compilation=CompilationConfig(cudagraph_mode=mode, cudagraph_capture_sizes=[2, 8]),
    )
    for batch in (1, 3, 8, 9):
        engine.reset_stats()
        outputs = engine.generate(PROMPTS[:batch], SamplingParams(max_tokens=8))
        assert [output.token_ids for output in outputs] == [answer[:8] for answer in EXPECTED[:batch]]
        [decode] = [replay for replay in engine.stats().replays if replay.phase == "decode"]
        graph = mode is not CUDAGraphMode.NONE and batch <= 8
        assert (decode.kind, decode.steps) == ("request" if graph else "eager", 7)
    if mode is not CUDAGraphMode.NONE:
        checks = list(verify_buckets(engine.runner, engine.scheduler.blocks))
        assert [check for check in checks if not check.equal] == []
