from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.config import (
    CompilationConfig,
    Config,
    ConfigError,
    CUDAGraphMode,
    KVCacheConfig,
    ModelConfig,
    ParallelConfig,
    SpeculativeConfig,
)

NESTED = {
    "model_config": ModelConfig,
    "kv_cache_config": KVCacheConfig,
    "parallel_config": ParallelConfig,
    "speculative_config": SpeculativeConfig,
    "compilation_config": CompilationConfig,
}


def test_json_holds_only_what_was_set() -> None:
    config = Config("m", compilation_config=CompilationConfig(level=3), max_num_seqs=20)
    assert json.loads(config.to_json()) == {
        "model": "m",
        "compilation_config": {"level": 3},
        "max_num_seqs": 20,
    }


def test_a_default_that_was_named_is_written() -> None:
    assert Config("m", max_num_seqs=512).to_dict() == {"model": "m", "max_num_seqs": 512}


def test_json_writes_what_was_given_where_it_was_overridden() -> None:
    config = Config("m", compilation_config=CompilationConfig(level=3), enforce_eager=True)
    assert config.to_dict()["compilation_config"] == {"level": 3}


def test_modes_are_written_by_name_and_levels_by_number() -> None:
    config = CompilationConfig(level=2, cudagraph_mode=CUDAGraphMode.FULL_AND_TR_HYBRID)
    assert config.to_dict() == {"level": 2, "cudagraph_mode": "FULL_AND_TR_HYBRID"}


compilations: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    level=st.sampled_from([0, 1, 2, 3]),
    cudagraph_mode=st.sampled_from([None, *CUDAGraphMode]),
    use_cudagraph=st.booleans(),
    cudagraph_capture_sizes=st.none() | st.lists(st.integers(1, 64), min_size=1, unique=True),
    compile_sizes=st.none() | st.just(["cudagraph_capture_sizes", 7]),
    splitting_ops=st.none() | st.just([]) | st.just(["ns.op"]),
    inductor_compile_config=st.dictionaries(st.text(min_size=1), st.integers() | st.booleans() | st.none()),
)


@given(
    compilation=compilations,
    chosen=st.sets(st.sampled_from(["level", "cudagraph_mode", "compile_sizes", "splitting_ops"])),
    eager=st.booleans(),
    mtp_k=st.integers(0, 3),
)
def test_json_round_trip_gives_an_equal_configuration_that_remembers_the_same(
    compilation: dict[str, Any], chosen: set[str], eager: bool, mtp_k: int
) -> None:
    compilation = {name: value for name, value in compilation.items() if name not in chosen}
    config = Config(
        "folder/model",
        enforce_eager=eager,
        max_num_seqs=64,
        speculative_config=SpeculativeConfig(num_speculative_tokens=mtp_k) if mtp_k else None,
        compilation_config=CompilationConfig(**compilation),
    )
    back = Config.from_json(config.to_json())
    assert back == config
    assert back.fields_set == config.fields_set
    assert back.compilation_config.fields_set == config.compilation_config.fields_set
    assert back.to_json() == config.to_json()
    assert back.compute_hash() == config.compute_hash()


@pytest.mark.parametrize(("holder", "cls"), NESTED.items())
def test_every_nested_class_survives_the_round_trip(holder: str, cls: type[Any]) -> None:
    config = Config("m", **{holder: cls()})
    assert config.to_dict() == {"model": "m", holder: {}}
    assert Config.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a JSON object"),
        ("[]", "a JSON object"),
        ("3", "a JSON object"),
        ("{}", r"Config.model = None .* no default"),
        ('{"model": "m", "max_num_seq": 3}', r"max_num_seqs\?"),
        ('{"model": "m", "model": "n"}', "each field given once"),
        ('{"model": "m", "compilation_config": {"lvl": 3}}', "CompilationConfig = 'lvl'"),
        ('{"model": "m", "compilation_config": {"level": 9}}', "CompilationConfig.level = 9"),
        ('{"model": "m", "compilation_config": 3}', "Config.compilation_config = 3"),
        ('{"model": "m", "capture_sizes": [1]}', "Config = 'capture_sizes'"),
        ('{"model": "m", "max_num_seqs": 1e3}', "Config.max_num_seqs = 1000.0"),
        ('{"model": "m", "max_num_seqs": null}', "Config.max_num_seqs = None"),
    ],
)
def test_a_document_that_cannot_be_used_gives_one_line_that_says_where(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Config.from_json(text)
    assert "\n" not in str(caught.value)


def test_a_value_that_json_cannot_hold_is_refused_by_name() -> None:
    config = CompilationConfig(inductor_compile_config={"post_grad_custom_pass": print})
    for attempt in (config.to_json, config.compute_hash):
        with pytest.raises(ConfigError, match=r"inductor_compile_config\['post_grad_custom_pass'\]"):
            attempt()


def test_replace_does_not_turn_defaults_into_choices() -> None:
    config = Config("m").replace(max_num_seqs=8)
    assert config.fields_set == {"model", "max_num_seqs"}
    with pytest.raises(ConfigError, match=r"max_num_seqs\?"):
        config.replace(max_num_sqs=8)


@pytest.mark.parametrize("cls", [Config, *NESTED.values()])
def test_every_field_describes_itself_and_accepts_its_own_default(cls: type[Any]) -> None:
    for field in dataclasses.fields(cls):
        described = field.metadata.get("atom.config")
        assert described is not None, f"{cls.__name__}.{field.name} has no help"
        assert described.help.endswith(".")
        if field.init and field.default is not dataclasses.MISSING:
            assert described.kind.check(field.name, field.default) == field.default
