"""The guide's import paths lead to the home modules themselves."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize(("alias", "home"), [("atom.model_engine.model_runner", "atom.runner.model_runner")])
def test_an_alias_is_its_home_module(alias, home):
    assert importlib.import_module(alias) is importlib.import_module(home)
    assert importlib.import_module(alias).ModelRunner.__module__ == home
