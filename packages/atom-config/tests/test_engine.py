from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.config import (
    CompilationConfig,
    CompilationLevel,
    Config,
    ConfigError,
    CUDAGraphMode,
    ModelConfig,
    SpeculativeConfig,
    default_ladder,
)


def piecewise(max_num_seqs: int = 512, **compilation: Any) -> Config:
    return Config(
        "m", max_num_seqs=max_num_seqs, compilation_config=CompilationConfig(level=3, **compilation)
    )


def test_level_3_takes_the_guides_four_steps() -> None:
    config = piecewise(compile_sizes=["cudagraph_capture_sizes"])
    assert config.compilation_config.splitting_ops == [
        "aiter.unified_attention_with_output",
        "aiter.mla_attention",
    ]
    assert config.capture_sizes == default_ladder(512)
    assert config.compilation_config.cudagraph_mode is CUDAGraphMode.TR_HYBRID
    assert config.compilation_config.compile_sizes == default_ladder(512)


@pytest.mark.parametrize("mode", list(CUDAGraphMode))
def test_level_3_keeps_a_mode_that_was_chosen(mode: CUDAGraphMode) -> None:
    config = piecewise(cudagraph_mode=mode)
    assert config.compilation_config.cudagraph_mode is mode
    assert (config.capture_sizes is None) == (mode is CUDAGraphMode.NONE)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_below_level_3_nothing_is_recorded_unless_a_mode_was_chosen(level: int) -> None:
    plain = Config("m", compilation_config=CompilationConfig(level=level))
    assert plain.compilation_config.cudagraph_mode is CUDAGraphMode.NONE
    assert plain.capture_sizes is None
    assert plain.compilation_config.splitting_ops is None
    chosen = plain.replace(
        compilation_config=CompilationConfig(level=level, cudagraph_mode=CUDAGraphMode.FULL)
    )
    assert chosen.compilation_config.cudagraph_mode is CUDAGraphMode.FULL
    assert chosen.capture_sizes == default_ladder(512)


def test_enforce_eager_is_level_0_and_mode_none_whatever_else_is_set() -> None:
    config = piecewise(cudagraph_mode=CUDAGraphMode.FULL).replace(enforce_eager=True)
    assert config.compilation_config.level is CompilationLevel.NO_COMPILATION
    assert config.compilation_config.cudagraph_mode is CUDAGraphMode.NONE
    assert config.capture_sizes is None
    assert config.prefill_capture_sizes is None


def test_lifting_enforce_eager_brings_level_and_mode_back() -> None:
    config = piecewise(cudagraph_mode=CUDAGraphMode.FULL)
    assert config.replace(enforce_eager=True).replace(enforce_eager=False) == config


def test_use_cudagraph_false_is_mode_none_at_the_chosen_level() -> None:
    config = piecewise(use_cudagraph=False, cudagraph_mode=CUDAGraphMode.FULL)
    assert config.compilation_config.cudagraph_mode is CUDAGraphMode.NONE
    assert config.compilation_config.level == 3
    assert config.capture_sizes is None


def test_the_given_compilation_config_is_copied_not_changed() -> None:
    asked = CompilationConfig(level=3, compile_sizes=["cudagraph_capture_sizes"])
    small, large = (Config("m", max_num_seqs=n, compilation_config=asked) for n in (2, 4))
    assert asked == CompilationConfig(level=3, compile_sizes=["cudagraph_capture_sizes"])
    assert small.compilation_config.compile_sizes == [1, 2]
    assert large.compilation_config.compile_sizes == [1, 2, 3, 4]


def test_computed_values_of_one_config_do_not_leak_into_another() -> None:
    hybrid = piecewise()
    eager = Config("m", compilation_config=hybrid.compilation_config.replace(level=0))
    assert eager.compilation_config.cudagraph_mode is CUDAGraphMode.NONE
    assert eager.compilation_config.splitting_ops is None


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 12, 20, 33, 513])
def test_the_default_ladder_fits_every_limit(limit: int) -> None:
    sizes = piecewise(limit).capture_sizes
    assert sizes is not None
    assert sizes[-1] == limit
    assert sizes[0] == 1
    assert sizes == sorted(set(sizes))
    assert set(sizes) <= {*default_ladder(512), limit}


@pytest.mark.parametrize("field", ["cudagraph_capture_sizes", "cuda_graph_sizes"])
def test_a_listed_ladder_is_used_sorted(field: str) -> None:
    assert piecewise(12, **{field: [8, 1, 4]}).capture_sizes == [1, 4, 8]


@pytest.mark.parametrize("sizes", [[4, 4], [0], [], [16], [1, 13]])
def test_a_listed_ladder_that_cannot_be_is_refused_with_field_value_and_what_is_allowed(
    sizes: list[int],
) -> None:
    with pytest.raises(ConfigError) as caught:
        piecewise(12, cudagraph_capture_sizes=sizes)
    assert caught.value.field == "CompilationConfig.cudagraph_capture_sizes"
    assert caught.value.value == sizes
    assert "whole numbers" in caught.value.allowed
    assert "\n" not in str(caught.value)


def test_several_cuda_graph_sizes_above_the_limit_name_their_own_field() -> None:
    with pytest.raises(ConfigError, match=r"CompilationConfig.cuda_graph_sizes = \[8, 16\] .* 1 to 12"):
        piecewise(12, cuda_graph_sizes=[8, 16])


def test_a_single_cuda_graph_size_ends_the_even_steps_and_the_limit_still_has_a_bucket() -> None:
    assert piecewise(100, cuda_graph_sizes=[32]).capture_sizes == [*default_ladder(32), 100]
    assert piecewise(20, cuda_graph_sizes=[32]).capture_sizes == [*default_ladder(16), 20]


def test_a_limit_below_the_smallest_listed_bucket_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"from 1 to 2 "):
        piecewise(2, cudagraph_capture_sizes=[4, 8])


def test_the_token_limit_cuts_the_default_ladder_and_refuses_a_listed_size_above_it() -> None:
    config = Config(
        "m", max_num_seqs=64, max_num_batched_tokens=20, compilation_config=CompilationConfig(level=3)
    )
    assert config.max_decode_seqs == 20
    assert config.capture_sizes == [1, 2, 3, 4, 5, 6, 7, 8, 16, 20]
    with pytest.raises(ConfigError, match=r"from 1 to 20 \(max_num_batched_tokens\)"):
        config.replace(compilation_config=CompilationConfig(level=3, cudagraph_capture_sizes=[32]))


def test_drafted_tokens_count_towards_the_token_limit() -> None:
    config = Config(
        "m",
        max_num_seqs=64,
        max_num_batched_tokens=32,
        speculative_config=SpeculativeConfig(num_speculative_tokens=3),
        compilation_config=CompilationConfig(level=3, compile_sizes=["cudagraph_capture_sizes"]),
    )
    assert (config.mtp_k, config.max_query_len, config.max_decode_seqs) == (3, 4, 8)
    assert config.capture_sizes == [1, 2, 3, 4, 5, 6, 7, 8]
    assert config.compilation_config.compile_sizes == [4, 8, 12, 16, 20, 24, 28, 32]
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens = 3 .* at least 4"):
        config.replace(max_num_batched_tokens=3)


def test_a_compile_size_is_limited_by_tokens_not_by_sequences() -> None:
    assert piecewise(12, compile_sizes=[4096]).compilation_config.compile_sizes == [4096]
    with pytest.raises(ConfigError, match=r"compile_sizes = \[8193\] .* 1 to 8192"):
        piecewise(12, compile_sizes=[8193])


def test_prefill_buckets_have_a_ladder_of_their_own() -> None:
    sizes = piecewise(4).prefill_capture_sizes
    assert sizes is not None
    assert (sizes[0], sizes[-1]) == (16, 1024)
    assert piecewise(4, cudagraph_prefill_capture_sizes=[256, 64]).prefill_capture_sizes == [64, 256]
    with pytest.raises(ConfigError, match=r"cudagraph_prefill_capture_sizes = \[9000\] .* 1 to 8192"):
        piecewise(4, cudagraph_prefill_capture_sizes=[9000])


def test_without_chunked_prefill_the_longest_prompt_must_fit_a_step() -> None:
    longest = ModelConfig(max_model_len=9000)
    assert Config("m", model_config=longest).enable_chunked_prefill
    with pytest.raises(ConfigError, match="at least 9000"):
        Config("m", model_config=longest, enable_chunked_prefill=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""),
        ("model", None),
        ("model_config", {}),
        ("compilation_config", None),
        ("speculative_config", 2),
        ("max_num_seqs", 0),
        ("max_num_seqs", 1.5),
        ("max_num_batched_tokens", True),
        ("enforce_eager", "no"),
        ("enable_tbo", "some"),
    ],
)
def test_a_wrong_value_names_field_and_value(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(**{"model": "m", field: value})  # type: ignore[arg-type]
    assert caught.value.field == f"Config.{field}"
    assert caught.value.value == value


def test_a_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config("m").max_num_seqs = 3  # type: ignore[misc]


limits = st.integers(min_value=1, max_value=600)


@given(max_num_seqs=limits, max_num_batched_tokens=limits, mtp_k=st.integers(min_value=0, max_value=5))
def test_no_bucket_is_larger_than_a_step_can_be_and_the_largest_step_has_one(
    max_num_seqs: int, max_num_batched_tokens: int, mtp_k: int
) -> None:
    drafting = SpeculativeConfig(num_speculative_tokens=mtp_k) if mtp_k else None

    def build() -> Config:
        return Config(
            "m",
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            speculative_config=drafting,
            compilation_config=CompilationConfig(level=3),
        )

    if max_num_batched_tokens <= mtp_k:
        with pytest.raises(ConfigError, match="max_num_batched_tokens"):
            build()
        return
    config = build()
    assert config.capture_sizes is not None
    assert config.capture_sizes[-1] == config.max_decode_seqs
    assert config.max_decode_seqs * (mtp_k + 1) <= max_num_batched_tokens
    assert config.capture_sizes[0] == 1
