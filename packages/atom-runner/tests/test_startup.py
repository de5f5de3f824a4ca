"""From a configuration to an engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from atom.config import Config, KVCacheConfig, ModelConfig, ParallelConfig, SpeculativeConfig
from atom.runner import KVCacheError, LLMEngine, ModelLoadError, SamplingParams, TokenizerError
from atom.runner.loader import OpenedCheckpoint
from atom.runner.startup import resolve_device, resolve_dtype

CHECKPOINT = SimpleNamespace(
    path=Path("tiny.gguf"),
    format="gguf",
    architecture="Tiny",
    vocab_size=97,
    max_model_len=256,
    dtype="bfloat16",
    nbytes=1000,
    tokenizer=None,
    generation=SimpleNamespace(eos_token_ids=(96,), bos_token_id=None, sampling={}),
)


@pytest.fixture
def built(monkeypatch, tiny_lm):
    """Opening any path gives the tiny model; the list holds what it was built with."""
    calls = []

    class Provider:
        name = "tiny"
        architectures = {"Tiny": object}  # noqa: RUF012

        def open(self, path):
            return CHECKPOINT

        def build(self, checkpoint, atom_config, *, device, dtype, progress=None):
            calls.append((device, dtype))
            if progress is not None:
                progress("Loading weights", 1000, 1000)
            return tiny_lm

    monkeypatch.setattr(
        "atom.runner.startup.open_checkpoint", lambda _: OpenedCheckpoint(Provider(), CHECKPOINT)
    )
    return calls


def config_of(**model):
    return Config(
        "anything",
        model_config=ModelConfig(**model),
        max_num_seqs=4,
        kv_cache_config=KVCacheConfig(num_kv_blocks=9),
    )


def test_an_engine_knows_its_checkpoints_limits(built):
    heard = []
    engine = LLMEngine(config_of(device="cpu"), progress=lambda *report: heard.append(report))
    assert built == [(torch.device("cpu"), torch.float32)]
    assert heard == [("Loading weights", 1000, 1000)]
    limits = engine.limits
    assert (limits.vocab_size, limits.max_model_len, limits.kv_capacity) == (97, 256, 144)
    assert limits.eos_token_ids == {96}
    assert engine.checkpoint is CHECKPOINT
    assert engine.stats().load_seconds > 0
    assert len(engine.generate([[1, 2]], SamplingParams(max_tokens=3, ignore_eos=True))[0].token_ids) == 3


def test_a_shorter_context_may_be_asked_for_and_a_longer_one_not(built):
    assert LLMEngine(config_of(device="cpu", max_model_len=40)).limits.max_model_len == 40
    with pytest.raises(
        ModelLoadError, match=r"max_model_len=257: tiny\.gguf was made for at most 256 tokens"
    ):
        LLMEngine(config_of(device="cpu", max_model_len=257))


def test_a_tokenizer_that_cannot_be_read_is_told_before_weights_are_loaded(built, tmp_path):
    with pytest.raises(TokenizerError, match="give a tokenizer"):
        LLMEngine(config_of(device="cpu", tokenizer=str(tmp_path / "none")))
    assert built == []


def test_too_little_memory_for_a_block_is_an_error(built):
    config = config_of(device="cpu").replace(kv_cache_config=KVCacheConfig(kv_cache_memory_bytes=100))
    with pytest.raises(KVCacheError, match="kv_cache_memory_bytes gives"):
        LLMEngine(config)


@pytest.mark.parametrize(
    ("asked", "saved", "device", "dtype"),
    [
        ("auto", "bfloat16", "cpu", torch.float32),
        ("auto", "bfloat16", "cuda", torch.bfloat16),
        ("float16", "bfloat16", "cuda", torch.float16),
        ("bfloat16", "float32", "cpu", torch.bfloat16),
    ],
)
def test_auto_is_the_checkpoints_dtype_on_a_gpu_and_float32_on_a_cpu(asked, saved, device, dtype):
    assert resolve_dtype(asked, saved, torch.device(device)) is dtype


def test_auto_is_the_first_gpu_or_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(ModelLoadError, match="device=cuda: 0 GPUs are visible"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == torch.device("cuda", 0)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ModelLoadError, match="device=cuda:2: 2 GPUs are visible"):
        resolve_device("cuda:2")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tensor_parallel_size", {"parallel_config": ParallelConfig(tensor_parallel_size=2)}),
        ("data_parallel_size", {"parallel_config": ParallelConfig(data_parallel_size=2)}),
        (
            "speculative_config",
            {"speculative_config": SpeculativeConfig(method="ngram", num_speculative_tokens=1)},
        ),
        ("enable_tbo", {"enable_tbo": "all"}),
    ],
)
def test_what_this_version_does_not_have_is_refused_by_name(built, name, settings):
    with pytest.raises(ModelLoadError, match=f"{name}: this version runs one process"):
        LLMEngine(config_of(device="cpu").replace(**settings))
    assert built == []
