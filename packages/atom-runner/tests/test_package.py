"""The public surface: complete, sorted, and light until it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import atom.runner
import atom.runner.errors


def test_every_public_name_is_there():
    assert atom.runner.__all__ == sorted(atom.runner.__all__)
    assert set(atom.runner.__all__) <= set(dir(atom.runner))
    for name in atom.runner.__all__:
        assert getattr(atom.runner, name).__name__ == name


def test_every_error_is_public():
    errors = {
        name
        for name, value in vars(atom.runner.errors).items()
        if isinstance(value, type) and issubclass(value, atom.runner.errors.RunnerError)
    }
    assert errors <= set(atom.runner.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"'atom\.runner' has no attribute 'nothing'"):
        atom.runner.nothing  # noqa: B018


def test_importing_the_package_and_its_settings_loads_no_torch():
    code = "import sys, atom.runner; atom.runner.SamplingParams(); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_engine_loads_the_compiler_only_where_a_level_needs_it():
    code = "import sys, atom.runner.engine; assert not {'atom.compile', 'torch._dynamo'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
