from __future__ import annotations

import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar

from atom.runner.cli import app, models

if TYPE_CHECKING:
    import pytest


def test_the_installed_architectures_are_listed_with_their_package(
    capsys: pytest.CaptureFixture[str], follows_documentation: Any
) -> None:
    assert app.main(["models", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for row in rows:
        follows_documentation("models", row)
    llama = next(row for row in rows if row["architecture"] == "LlamaForCausalLM")
    assert (llama["package"], llama["version"]) == ("atom-models", version("atom-models"))
    assert llama["recording_unit"] == "LlamaModel"
    assert llama["regions"] == ["aiter.unified_attention_with_output"]
    deepseek = next(row for row in rows if row["architecture"] == "DeepseekV4ForCausalLM")
    assert (deepseek["recording_unit"], deepseek["regions"]) == (
        "DeepseekV4ForCausalLM",
        ["_fp4_band_logits"],
    )


class Silent:
    name = "silent"
    architectures: ClassVar = {"A": None}


class Broken(Silent):
    name = "broken"

    def describe(self, architecture: str) -> dict[str, Any]:
        raise ImportError("no such module")


def test_a_package_that_does_not_tell_or_cannot_be_loaded_is_listed_all_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "installed_providers", lambda: (Silent(), Broken()))
    assert app.main(["models", "--json"]) == 0
    printed = capsys.readouterr()
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert [(row["package"], row["recording_unit"], row["regions"]) for row in rows] == [
        ("silent", None, None),
        ("broken", None, None),
    ]
    assert printed.err == "broken: A cannot be loaded: ImportError: no such module\n"


def test_the_text_form_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["models"]) == 0
    assert any(
        line.split()[:2] == ["LlamaForCausalLM", "atom-models"]
        for line in capsys.readouterr().out.splitlines()
    )
