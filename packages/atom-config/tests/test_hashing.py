from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from typing import Any

import pytest

from atom.config import (
    CompilationConfig,
    Config,
    KVCacheConfig,
    ModelConfig,
    ParallelConfig,
    SpeculativeConfig,
    stable_hash,
)
from atom.config.kinds import Integer
from atom.config.setting import about, about_field, outside_key
from atom.config.settings import Settings

CLASSES: list[type[Any]] = [
    Config,
    CompilationConfig,
    KVCacheConfig,
    ModelConfig,
    ParallelConfig,
    SpeculativeConfig,
]

# One other value for each field that can be given, so that a new field fails below until somebody adds one.
OTHER: dict[str, Any] = {
    "Config.model": "other",
    "Config.model_config": ModelConfig(dtype="float32"),
    "Config.kv_cache_config": KVCacheConfig(block_size=32),
    "Config.parallel_config": ParallelConfig(tensor_parallel_size=2),
    "Config.speculative_config": SpeculativeConfig(),
    "Config.compilation_config": CompilationConfig(level=2),
    "Config.max_num_seqs": 7,
    "Config.max_num_batched_tokens": 4096,
    "Config.enable_chunked_prefill": False,
    "Config.enforce_eager": True,
    "Config.enable_tbo": "all",
    "CompilationConfig.level": 1,
    "CompilationConfig.use_cudagraph": False,
    "CompilationConfig.cudagraph_capture_sizes": [1],
    "CompilationConfig.cuda_graph_sizes": [64],
    "CompilationConfig.cudagraph_prefill_capture_sizes": [64],
    "CompilationConfig.cudagraph_mode": "FULL",
    "CompilationConfig.splitting_ops": ["ns.op"],
    "CompilationConfig.cudagraph_copy_inputs": True,
    "CompilationConfig.use_inductor": False,
    "CompilationConfig.compile_sizes": [8],
    "CompilationConfig.inductor_compile_config": {"max_autotune": True},
    "CompilationConfig.debug_dump_path": "dump",
    "CompilationConfig.cache_dir": "cache",
    "CompilationConfig.disable_compile_cache": True,
    "KVCacheConfig.block_size": 32,
    "KVCacheConfig.gpu_memory_utilization": 0.5,
    "KVCacheConfig.kv_cache_dtype": "float32",
    "KVCacheConfig.index_cache_dtype": "fp4",
    "KVCacheConfig.enable_prefix_caching": False,
    "KVCacheConfig.num_kv_blocks": 9,
    "KVCacheConfig.kv_cache_memory_bytes": 1 << 20,
    "ModelConfig.tokenizer": "tokenizer.json",
    "ModelConfig.dtype": "bfloat16",
    "ModelConfig.device": "cpu",
    "ModelConfig.seed": 1,
    "ModelConfig.max_model_len": 128,
    "ModelConfig.quantization": "int8",
    "ParallelConfig.tensor_parallel_size": 3,
    "ParallelConfig.data_parallel_size": 3,
    "ParallelConfig.enable_dp_attention": True,
    "ParallelConfig.rank": 1,
    "ParallelConfig.local_rank": 1,
    "ParallelConfig.distributed_timeout_s": 5.0,
    "SpeculativeConfig.method": "ngram",
    "SpeculativeConfig.num_speculative_tokens": 9,
    "SpeculativeConfig.model": "draft",
}


def base_of(cls: type[Any]) -> dict[str, Any]:
    return {"model": "m"} if cls is Config else {"data_parallel_size": 2} if cls is ParallelConfig else {}


def every_field() -> list[Any]:
    return [
        pytest.param(cls, field, id=f"{cls.__name__}.{field.name}")
        for cls in CLASSES
        for field in dataclasses.fields(cls)
    ]


@pytest.mark.parametrize(("cls", "field"), every_field())
def test_somebody_has_decided_for_every_field_whether_it_enters_the_key(
    cls: type[Any], field: dataclasses.Field[Any]
) -> None:
    described = about_field(field)
    assert described is not None
    assert described.key is not None, f"decide for {cls.__name__}.{field.name}: IN_KEY or outside_key(why)"
    assert described.key.counts or described.key.reason, "say why it cannot matter"


@pytest.mark.parametrize(("cls", "field"), every_field())
def test_a_field_changes_the_hash_exactly_if_it_was_not_declared_irrelevant(
    cls: type[Any], field: dataclasses.Field[Any]
) -> None:
    if not field.init:
        assert not about_field(field).in_key  # type: ignore[union-attr]
        return
    before = cls(**base_of(cls))
    after = cls(**{**base_of(cls), field.name: OTHER[f"{cls.__name__}.{field.name}"]})
    assert getattr(after, field.name) != getattr(before, field.name)
    changed = before.compute_hash() != after.compute_hash()
    described = about_field(field)
    assert described is not None
    assert changed == described.in_key


def test_a_field_nobody_decided_on_counts_and_so_does_one_without_a_description() -> None:
    @dataclasses.dataclass(frozen=True)
    class Young(Settings):
        undecided: int = dataclasses.field(default=1, metadata=about("Something.", Integer()))
        bare: int = 1
        declared: int = dataclasses.field(
            default=1, metadata=about("Something.", Integer(), key=outside_key("a reason"))
        )

    assert Young().key_material() == {"undecided": 1, "bare": 1}
    hashes = {Young().compute_hash(), Young(undecided=2).compute_hash(), Young(bare=2).compute_hash()}
    assert len(hashes) == 3
    assert Young(declared=2).compute_hash() == Young().compute_hash()


@pytest.mark.parametrize(
    "change",
    [
        {"speculative_config": SpeculativeConfig(num_speculative_tokens=7)},
        {"speculative_config": SpeculativeConfig(num_speculative_tokens=9)},
        {"model_config": ModelConfig(dtype="float32")},
        {"model_config": ModelConfig(max_model_len=64)},
        {"parallel_config": ParallelConfig(tensor_parallel_size=2)},
        {"compilation_config": CompilationConfig(inductor_compile_config={"max_autotune": True})},
    ],
)
def test_a_change_and_back_gives_the_first_hash_again(change: dict[str, Any]) -> None:
    first = Config("m")
    changed = first.replace(**change)
    assert changed.compute_hash() != first.compute_hash()
    assert changed.replace(**{name: getattr(first, name) for name in change}).compute_hash() == (
        first.compute_hash()
    )


def test_seven_and_nine_drafted_tokens_never_share_a_key() -> None:
    seven, nine = (
        Config("m", speculative_config=SpeculativeConfig(num_speculative_tokens=k)) for k in (7, 9)
    )
    assert seven.compute_hash() != nine.compute_hash()


def test_the_hash_is_the_same_in_another_process_with_another_hash_seed() -> None:
    script = (
        "from atom.config import *; print(Config('m', compilation_config=CompilationConfig(level=3, "
        "inductor_compile_config={'b': 1, 'a': [2.5, None]})).compute_hash())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    here = Config(
        "m",
        compilation_config=CompilationConfig(level=3, inductor_compile_config={"a": [2.5, None], "b": 1}),
    )
    assert seen == {here.compute_hash()}


def test_numbers_and_texts_that_look_alike_differ() -> None:
    assert len({stable_hash(value) for value in (1, "1", 1.5, "1.5", True, None, "null", [1], {"1": 1})}) == 9
