from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from atom.config import CompilationLevel, CUDAGraphMode, settings_of
from atom.runner.cli.flags import EngineFlags, attribute_docs, takes_flags
from atom.runner.sampling_params import SamplingParams


def parsed(*arguments: str) -> dict[str, Any]:
    """What a verb with all derived flags receives for a command line."""
    seen: dict[str, Any] = {}

    @takes_flags(engine=True, sampling=True)
    def verb(
        *,
        own: Annotated[bool, typer.Option("--own")] = False,
        engine: EngineFlags,
        sampling: SamplingParams,
    ) -> int:
        """A verb."""
        seen.update(own=own, engine=engine, sampling=sampling)
        return 0

    app = typer.Typer(rich_markup_mode=None)
    app.command()(verb)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen


def option_names() -> set[str]:
    @takes_flags(engine=True, sampling=True)
    def verb(*, engine: EngineFlags, sampling: SamplingParams) -> int:
        """A verb."""
        return 0

    app = typer.Typer(rich_markup_mode=None)
    app.command()(verb)
    command = typer.main.get_command(app)
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_every_setting_with_a_flag_is_offered() -> None:
    wanted = {setting.flag for setting in settings_of() if setting.flag and not setting.computed}
    assert wanted <= option_names()
    assert {"--model", "--level", "--cudagraph-mode", "--cudagraph-capture-sizes"} <= wanted
    assert {"--enforce-eager", "--enable-tbo", "--max-num-seqs", "--enable-dp-attention"} <= wanted


def test_every_sampling_setting_is_offered_but_a_seed_of_ones_own() -> None:
    fields = {field.name for field in dataclasses.fields(SamplingParams)} - {"seed"}
    assert {"--" + name.replace("_", "-") for name in fields} <= option_names()


def test_nothing_given_leaves_everything_at_its_default() -> None:
    seen = parsed()
    assert seen == {"own": False, "engine": EngineFlags({}), "sampling": SamplingParams()}
    assert seen["engine"].model is None


def test_values_reach_the_configuration_by_their_names() -> None:
    flags = parsed(
        *(
            "--level",
            "Piecewise",
            "--cudagraph-mode",
            "full_decode_only",
            "--cudagraph-capture-sizes",
            "8,1,4",
        ),
        *("--max-num-seqs", "8", "--dtype", "BFloat16", "--no-enable-prefix-caching", "--seed", "5"),
    )["engine"]
    config = flags.config("some/path")
    assert config.model == "some/path"
    assert config.compilation_config.level == CompilationLevel.PIECEWISE
    assert config.compilation_config.cudagraph_mode is CUDAGraphMode.FULL_DECODE_ONLY
    assert config.capture_sizes == [1, 4, 8]
    assert (config.model_config.dtype, config.model_config.seed) == ("bfloat16", 5)
    assert not config.kv_cache_config.enable_prefix_caching


def test_sampling_values_reach_the_params() -> None:
    seen = parsed(
        *("--temperature", "0.7", "--top-k", "5", "--stop", "a,b", "--stop", "c", "--stop-token-ids", "3, 4"),
        *("--ignore-eos", "--own"),
    )
    assert seen["own"]
    assert seen["sampling"] == SamplingParams(
        temperature=0.7, top_k=5, stop=("a,b", "c"), stop_token_ids=(3, 4), ignore_eos=True
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--level", "9"), "--level = '9' is not allowed; allowed: 0 (NO_COMPILATION)"),
        (("--cudagraph-mode", "half"), "--cudagraph-mode = 'half' is not allowed; allowed: NONE, TR_HYBRID"),
        (("--cudagraph-capture-sizes", "4,4"), "--cudagraph-capture-sizes = "),
        (("--max-num-seqs", "none"), "--max-num-seqs = 'none' is not allowed"),
        (("--temperature", "-1"), "temperature=-1.0: must be 0 or a positive number"),
    ],
)
def test_a_bad_value_names_the_flag_the_value_and_what_is_allowed(
    arguments: tuple[str, ...], error: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the text is compared below
        parsed(*arguments)
    assert str(caught.value).startswith(error)


def test_attribute_docs_are_the_strings_below_the_fields() -> None:
    docs = attribute_docs(SamplingParams)
    assert docs["temperature"] == "Divides the logits; 0 takes the most likely token."
    assert all(docs[field.name] for field in dataclasses.fields(SamplingParams))
