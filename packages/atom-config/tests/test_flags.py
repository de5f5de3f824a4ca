from __future__ import annotations

import dataclasses

import pytest

from atom.config import CompilationConfig, Config, ConfigError, from_settings, settings_of


def test_every_field_is_listed_once_with_help_and_a_flag_of_its_own() -> None:
    settings = settings_of()
    assert len({setting.path for setting in settings}) == len(settings)
    flags = [setting.flag for setting in settings if setting.flag]
    assert len(set(flags)) == len(flags)
    assert all(setting.help for setting in settings)
    own = [setting.name for setting in settings if setting.owner is CompilationConfig]
    assert own == [field.name for field in dataclasses.fields(CompilationConfig)]


@pytest.mark.parametrize(
    ("flag", "path"),
    [
        ("--level", "compilation_config.level"),
        ("--cudagraph-mode", "compilation_config.cudagraph_mode"),
        ("--cudagraph-capture-sizes", "compilation_config.cudagraph_capture_sizes"),
        ("--enforce-eager", "enforce_eager"),
        ("--enable-tbo", "enable_tbo"),
        ("--max-num-seqs", "max_num_seqs"),
        ("--tensor-parallel-size", "parallel_config.tensor_parallel_size"),
        ("--data-parallel-size", "parallel_config.data_parallel_size"),
        ("--enable-dp-attention", "parallel_config.enable_dp_attention"),
        ("--speculative-model", "speculative_config.model"),
    ],
)
def test_flags_have_the_guides_names(flag: str, path: str) -> None:
    assert {setting.flag: setting.path for setting in settings_of()}[flag] == path


def test_computed_fields_and_ranks_have_no_flag() -> None:
    without = {setting.path for setting in settings_of() if not setting.flag}
    assert without == {
        "capture_sizes",
        "prefill_capture_sizes",
        "parallel_config.rank",
        "parallel_config.local_rank",
    }


def test_a_config_is_built_from_what_flags_said() -> None:
    said = {"--model": "m", "--level": "piecewise", "--max-num-seqs": "4", "--num-speculative-tokens": "2"}
    by_flag = {setting.flag: setting for setting in settings_of()}
    config = from_settings({by_flag[flag].path: by_flag[flag].parse(text) for flag, text in said.items()})
    assert config.compilation_config.level == 3
    assert config.capture_sizes == [1, 2, 3, 4]
    assert config.mtp_k == 2
    assert config.to_dict() == {
        "model": "m",
        "speculative_config": {"num_speculative_tokens": 2},
        "compilation_config": {"level": 3},
        "max_num_seqs": 4,
    }


def test_nothing_said_about_speculation_leaves_it_off() -> None:
    assert from_settings({"model": "m"}) == Config("m")


@pytest.mark.parametrize(
    "values", [{}, {"model": "m", "lvl": 3}, {"model": "m", "compilation_config.lvl": 3}]
)
def test_a_missing_model_or_an_unknown_path_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        from_settings(values)


def test_a_wrong_text_names_the_flag() -> None:
    level = next(setting for setting in settings_of() if setting.name == "level")
    with pytest.raises(ConfigError, match=r"^--level = '9' is not allowed"):
        level.parse("9")
