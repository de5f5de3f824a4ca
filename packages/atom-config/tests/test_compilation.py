from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

from atom.config import CompilationConfig, CompilationLevel, ConfigError, CUDAGraphMode

ATTENTION_OPS = ["aiter.unified_attention_with_output", "aiter.mla_attention"]


def test_fields_and_defaults_are_the_guides_table() -> None:
    table: dict[str, Any] = {
        "level": 0,
        "use_cudagraph": True,
        "cudagraph_capture_sizes": None,
        "cuda_graph_sizes": [512],
        "cudagraph_mode": None,
        "splitting_ops": None,
        "cudagraph_copy_inputs": False,
        "use_inductor": True,
        "compile_sizes": None,
        "inductor_compile_config": {},
        "debug_dump_path": "",
        "cache_dir": "",
    }
    ours = {"cudagraph_prefill_capture_sizes": None, "disable_compile_cache": False}
    assert dataclasses.asdict(CompilationConfig()) == {**table, **ours}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("level", 4),
        ("level", "fast"),
        ("use_cudagraph", 1),
        ("cudagraph_capture_sizes", []),
        ("cudagraph_capture_sizes", [0]),
        ("cudagraph_capture_sizes", [4, 4]),
        ("cuda_graph_sizes", []),
        ("cuda_graph_sizes", [0]),
        ("cuda_graph_sizes", None),
        ("cudagraph_prefill_capture_sizes", [64, 64]),
        ("cudagraph_mode", "PIECEWISE"),
        ("splitting_ops", ["aiter.mla_attention", ""]),
        ("splitting_ops", "aiter.mla_attention"),
        ("cudagraph_copy_inputs", "yes"),
        ("use_inductor", None),
        ("compile_sizes", ["capture_sizes"]),
        ("compile_sizes", [-8]),
        ("inductor_compile_config", [1]),
        ("debug_dump_path", None),
        ("cache_dir", 3),
        ("disable_compile_cache", 0),
    ],
)
def test_a_wrong_value_names_field_and_value_when_given_and_when_assigned(field: str, value: Any) -> None:
    config = CompilationConfig()
    before = copy.deepcopy(config)
    for attempt in (lambda: CompilationConfig(**{field: value}), lambda: setattr(config, field, value)):
        with pytest.raises(ConfigError) as caught:
            attempt()
        assert caught.value.field == f"CompilationConfig.{field}"
        assert caught.value.value == value
        assert caught.value.allowed
    assert config == before


def test_values_are_normalised_on_the_way_in() -> None:
    config = CompilationConfig(
        level="piecewise",  # type: ignore[arg-type]
        cudagraph_mode="full_decode_only",  # type: ignore[arg-type]
        cudagraph_capture_sizes=[8, 1, 4],
    )
    assert config.level is CompilationLevel.PIECEWISE
    assert config.cudagraph_mode is CUDAGraphMode.FULL_DECODE_ONLY
    assert config.cudagraph_capture_sizes == [1, 4, 8]


def test_a_misspelt_assignment_is_refused_with_the_name_that_was_meant() -> None:
    config = CompilationConfig()
    with pytest.raises(ConfigError, match="cudagraph_mode\\?"):
        config.cudagraph_mod = CUDAGraphMode.FULL


def test_splitting_ops_default_to_the_attention_ops_and_an_empty_list_stays_empty() -> None:
    default, empty, own = (CompilationConfig(splitting_ops=given) for given in (None, [], ["my.attention"]))
    for config in (default, empty, own):
        config.set_splitting_ops_for_v1()
    assert default.splitting_ops == ATTENTION_OPS
    assert empty.splitting_ops == []
    assert own.splitting_ops == ["my.attention"]


def test_two_configurations_do_not_share_their_default_lists() -> None:
    first, second = CompilationConfig(), CompilationConfig()
    for config in (first, second):
        config.set_splitting_ops_for_v1()
    assert first.splitting_ops is not None
    first.splitting_ops.append("my.op")
    first.cuda_graph_sizes.append(600)
    first.inductor_compile_config["max_autotune"] = True
    assert second.splitting_ops == ATTENTION_OPS
    assert second.cuda_graph_sizes == [512]
    assert second.inductor_compile_config == {}


@pytest.mark.parametrize(
    ("compile_sizes", "expected"),
    [
        (None, []),
        ([], []),
        ([64, 3], [3, 64]),
        (["cudagraph_capture_sizes"], [1, 2, 4]),
        ([2, "cudagraph_capture_sizes", 100], [1, 2, 4, 100]),
    ],
)
def test_compile_sizes_become_ascending_rows(
    compile_sizes: list[int | str] | None, expected: list[int]
) -> None:
    config = CompilationConfig(cudagraph_capture_sizes=[4, 2, 1], compile_sizes=compile_sizes)
    config.init_with_cudagraph_sizes()
    assert config.compile_sizes == expected
    assert config.compile_rows() == expected


def test_the_capture_ladder_counts_rows_when_sequences_verify_drafts() -> None:
    config = CompilationConfig(compile_sizes=["cudagraph_capture_sizes"])
    config.init_with_cudagraph_sizes([1, 2, 4], rows_per_sequence=3)
    assert config.compile_sizes == [3, 6, 12]


def test_a_compile_size_above_the_largest_step_is_refused() -> None:
    config = CompilationConfig(compile_sizes=[64, 128])
    with pytest.raises(ConfigError, match=r"compile_sizes = \[64, 128\] .* from 1 to 100 "):
        config.init_with_cudagraph_sizes([1], max_rows=100)


def test_settling_twice_changes_nothing() -> None:
    config = CompilationConfig(compile_sizes=["cudagraph_capture_sizes", 9], cudagraph_capture_sizes=[2])
    config.init_with_cudagraph_sizes()
    config.init_with_cudagraph_sizes()
    assert config.compile_sizes == [2, 9]
    assert config.given()["compile_sizes"] == [9, "cudagraph_capture_sizes"]


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({}, CUDAGraphMode.NONE),
        ({"level": 1}, CUDAGraphMode.NONE),
        ({"level": 2}, CUDAGraphMode.NONE),
        ({"level": 3}, CUDAGraphMode.TR_HYBRID),
        ({"level": 3, "cudagraph_mode": "FULL"}, CUDAGraphMode.FULL),
        ({"level": 0, "cudagraph_mode": "FULL"}, CUDAGraphMode.FULL),
        ({"level": 3, "cudagraph_mode": "NONE"}, CUDAGraphMode.NONE),
        ({"level": 3, "cudagraph_mode": "FULL", "use_cudagraph": False}, CUDAGraphMode.NONE),
    ],
)
def test_the_effective_mode_follows_switch_then_choice_then_level(
    given: dict[str, Any], mode: CUDAGraphMode
) -> None:
    assert CompilationConfig(**given).effective_cudagraph_mode() is mode


def test_what_was_set_is_remembered_beside_what_is_computed() -> None:
    config = CompilationConfig(level=3, use_cudagraph=True)
    config.settle(enforce_eager=True)
    config.set_splitting_ops_for_v1()
    assert config.level == 0
    assert config.fields_set == {"level", "use_cudagraph"}
    assert config.given() == {"level": 3, "use_cudagraph": True}


def test_assigning_and_changing_in_place_count_as_setting() -> None:
    config = CompilationConfig()
    config.cache_dir = ""
    config.inductor_compile_config["max_autotune"] = True
    config.set_splitting_ops_for_v1()
    assert config.splitting_ops is not None
    config.splitting_ops.append("my.op")
    assert config.given() == {
        "splitting_ops": [*ATTENTION_OPS, "my.op"],
        "inductor_compile_config": {"max_autotune": True},
        "cache_dir": "",
    }


def test_an_assignment_replaces_a_computed_value_for_good() -> None:
    config = CompilationConfig(level=3)
    config.settle(enforce_eager=False)
    config.cudagraph_mode = CUDAGraphMode.TR_HYBRID  # the computed value, now chosen
    assert config.replace(level=0).cudagraph_mode is CUDAGraphMode.TR_HYBRID


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_a_copy_remembers_what_was_set(duplicate: Any) -> None:
    config = CompilationConfig(level=3)
    config.settle(enforce_eager=False)
    twin = duplicate(config)
    assert twin == config
    assert twin.given() == {"level": 3}


def test_a_shallow_copy_goes_its_own_way() -> None:
    config = CompilationConfig(level=3)
    config.settle(enforce_eager=False)
    twin = copy.copy(config)
    twin.use_cudagraph = False
    twin.cudagraph_mode = CUDAGraphMode.FULL
    assert config.given() == {"level": 3}
    assert twin.given() == {"level": 3, "use_cudagraph": False, "cudagraph_mode": CUDAGraphMode.FULL}


def test_the_cache_root_is_the_guides_unless_a_directory_was_given(tmp_path: Path) -> None:
    assert CompilationConfig().cache_root() == Path.home() / ".cache/atom/torch_compile_cache"
    assert CompilationConfig(cache_dir=str(tmp_path)).cache_root() == tmp_path
    assert CompilationConfig(cache_dir="~/c").cache_root() == Path.home() / "c"
