from __future__ import annotations

import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from atom.runner.cli import app

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


def test_the_text_form_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["models"]) == 0
    assert any(
        line.split()[:2] == ["LlamaForCausalLM", "atom-models"]
        for line in capsys.readouterr().out.splitlines()
    )
