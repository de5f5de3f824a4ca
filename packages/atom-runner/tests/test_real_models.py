"""Real models of atom-models against transformers: the seams hold, the tokens are equal."""

from __future__ import annotations

import inspect

import pytest
import torch

from atom.config import CompilationConfig, Config, CUDAGraphMode, KVCacheConfig, ModelConfig
from atom.runner import CausalLM, Checkpoint, LLMEngine, ModelProvider, SamplingParams, protocols
from atom.runner.loader import installed_providers, open_checkpoint

transformers = pytest.importorskip("transformers")

SETTINGS = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 199,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,  # far from uniform answers
}
EXPERTS = {
    "Mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "Qwen3Moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
}
ROPE = {
    "default": {"rope_type": "default", "rope_theta": 10_000.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
MAX_TOKENS = 40


@pytest.fixture(scope="module")
def prompts():
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randint(3, 199, (n,), generator=generator).tolist() for n in (1, 5, 17, 40, 70, 3, 33, 9, 64)
    ]


@pytest.fixture(scope="module")
def saved(tmp_path_factory, prompts):
    """Folder of a tiny random model, and what transformers answers to the prompts; made once a kind."""
    known = {}

    def make(*, tied: bool = False, rope: str = "default", family: str = "Llama"):
        if (tied, rope, family) not in known:
            torch.manual_seed(5)
            config = getattr(transformers, f"{family}Config")(
                **SETTINGS | EXPERTS.get(family, {}),
                head_dim=8,
                tie_word_embeddings=tied,
                rope_parameters=ROPE[rope],
            )
            model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
            folder = tmp_path_factory.mktemp(family)
            model.save_pretrained(folder)
            answers = []
            for prompt in prompts:
                ids = torch.tensor([prompt])
                with torch.inference_mode():
                    full = model.generate(
                        ids,
                        attention_mask=torch.ones_like(ids),
                        max_new_tokens=MAX_TOKENS,
                        do_sample=False,
                        pad_token_id=0,
                    )
                answers.append(full[0, len(prompt) :].tolist())
            known[tied, rope, family] = folder, answers
        return known[tied, rope, family]

    return make


def engine_of(folder, *, num_kv_blocks=40, max_num_seqs=8, mode=None, sizes=None, level=0, **settings):
    return LLMEngine(
        Config(
            str(folder),
            model_config=ModelConfig(device="cpu", dtype="float32"),
            kv_cache_config=KVCacheConfig(block_size=8, num_kv_blocks=num_kv_blocks),
            compilation_config=CompilationConfig(
                level=level, cudagraph_mode=mode, cudagraph_capture_sizes=sizes
            ),
            max_num_seqs=max_num_seqs,
            **{"max_num_batched_tokens": 24, **settings},
        )
    )


def tokens(outputs):
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("rope", ROPE)
@pytest.mark.parametrize("tied", [True, False])
def test_greedy_answers_equal_transformers_own(saved, prompts, tied, rope):
    folder, expected = saved(tied=tied, rope=rope)
    engine = engine_of(folder, num_kv_blocks=20)  # 160 tokens for up to eight sequences
    assert tokens(engine.generate(prompts, SamplingParams(max_tokens=MAX_TOKENS))) == expected
    stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.kv_blocks_free == stats.kv_blocks
    assert {output.finish_reason for output in engine.generate(prompts)} <= {"stop", "length"}


@pytest.mark.parametrize("level", range(4))
@pytest.mark.parametrize("family", ["Mistral", "Qwen3", "Mixtral", "Qwen3Moe"])
def test_relatives_of_the_llama_answer_as_transformers_at_every_level_and_mode(saved, prompts, family, level):
    folder, expected = saved(family=family)
    for mode in ("NONE", "TR_HYBRID", "FULL", "FULL_DECODE_ONLY", "FULL_AND_TR_HYBRID"):
        config = Config(
            str(folder),
            model_config=ModelConfig(device="cpu", dtype="float32"),
            kv_cache_config=KVCacheConfig(block_size=8, num_kv_blocks=60),
            compilation_config=CompilationConfig(
                level=level, use_inductor=False, cudagraph_mode=mode, cudagraph_capture_sizes=[2, 8]
            ),
            max_num_seqs=9,
            max_num_batched_tokens=24,
        )
        assert tokens(LLMEngine(config).generate(prompts, SamplingParams(max_tokens=MAX_TOKENS))) == expected


@pytest.mark.parametrize("mode", list(CUDAGraphMode))
@pytest.mark.parametrize("batch", [1, 3, 8, 9])
def test_every_graph_mode_gives_transformers_answers(saved, prompts, mode, batch):
    folder, expected = saved(tied=True, rope="default")
    engine = engine_of(folder, mode=mode, sizes=[2, 8], max_num_seqs=9, num_kv_blocks=120)
    params = [SamplingParams(max_tokens=MAX_TOKENS)] * batch
    assert tokens(engine.generate(prompts[:batch], params)) == expected[:batch]
    kinds = {replay.kind for replay in engine.stats().replays if replay.phase == "decode"}
    assert ("request" in kinds) == (mode is not CUDAGraphMode.NONE)


def test_prefill_buckets_are_replayed_where_they_are_asked_for(saved, prompts):
    folder, expected = saved(tied=True, rope="default")
    engine = LLMEngine(
        Config(
            str(folder),
            model_config=ModelConfig(device="cpu", dtype="float32"),
            kv_cache_config=KVCacheConfig(block_size=8, num_kv_blocks=120),
            compilation_config=CompilationConfig(
                cudagraph_mode="tr_hybrid",
                cudagraph_capture_sizes=[4],
                cudagraph_prefill_capture_sizes=[8, 24],
            ),
            max_num_seqs=9,
            max_num_batched_tokens=24,
        )
    )
    params = SamplingParams(max_tokens=MAX_TOKENS)
    assert tokens(engine.generate(prompts[:2], params)) == expected[:2]
    assert tokens(engine.generate(prompts[2:], params)) == expected[2:]
    prefill = {replay.reason for replay in engine.stats().replays if replay.phase == "prefill"}
    assert prefill == {"prefill token bucket 8", "prefill token bucket 24"}


@pytest.mark.parametrize("mode", [CUDAGraphMode.NONE, CUDAGraphMode.TR_HYBRID])
def test_level_1_traces_the_recording_unit_and_changes_no_token(saved, prompts, mode):
    folder, expected = saved(tied=True, rope="default")
    engine = engine_of(folder, level=1, mode=mode, sizes=[2, 8])
    assert tokens(engine.generate(prompts[:3], SamplingParams(max_tokens=MAX_TOKENS))) == expected[:3]


@pytest.fixture(scope="module")
def provider():
    [provider] = [p for p in installed_providers() if p.name == "atom-models"]
    return provider


@pytest.fixture(scope="module")
def engine(saved):
    return engine_of(saved(tied=True, rope="default")[0])


@pytest.fixture(scope="module")
def checkpoint(saved):
    return open_checkpoint(saved(tied=True, rope="default")[0]).checkpoint


class TestTheSeams:
    """What atom-models offers is what the protocols ask for, member by member and argument by argument."""

    def test_a_provider_a_checkpoint_and_a_model_satisfy_their_protocols(self, provider, engine, checkpoint):
        assert isinstance(provider, ModelProvider)
        assert isinstance(checkpoint, Checkpoint)
        assert isinstance(engine.runner.model, CausalLM)

    @pytest.mark.parametrize(
        ("protocol", "method"),
        [
            ("ModelProvider", "open"),
            ("ModelProvider", "build"),
            ("CausalLM", "compute_logits"),
            ("CausalLM", "kv_cache_spec"),
            ("CausalLM", "prefill_token_buckets"),
            ("AttnMetadataBuilder", "build"),
        ],
    )
    def test_methods_take_the_protocols_arguments(self, provider, engine, protocol, method):
        real = {
            "ModelProvider": provider,
            "CausalLM": engine.runner.model,
            "AttnMetadataBuilder": engine.runner.model.attn_metadata_builder,
        }[protocol]
        asked = list(inspect.signature(getattr(getattr(protocols, protocol), method)).parameters.values())[1:]
        given = inspect.signature(getattr(real, method)).parameters
        assert [parameter.name for parameter in asked] == list(given)
        assert all(given[parameter.name].kind == parameter.kind for parameter in asked)

    def test_a_checkpoint_says_what_it_must(self, checkpoint):
        for name in vars(protocols.TokenizerData):
            if not name.startswith("_") and checkpoint.tokenizer is not None:
                assert hasattr(checkpoint.tokenizer, name)
        for name in ("eos_token_ids", "bos_token_id", "sampling"):
            assert hasattr(checkpoint.generation, name)
        assert (checkpoint.vocab_size, checkpoint.max_model_len, checkpoint.dtype) == (199, 256, "float32")
        assert checkpoint.generation.eos_token_ids == (2,)

    def test_layers_and_caches_have_the_same_names(self, engine):
        model = engine.runner.model
        names = {layer.layer_name for layer in model.attention_layers.values()}
        assert {spec.layer_name for spec in model.kv_cache_spec()} == names
        assert set(engine.runner.static_forward_context.kv_cache_data) == names
