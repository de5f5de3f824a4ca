"""`atom.models` is light to import and still offers the models."""

from __future__ import annotations

import subprocess
import sys

import pytest

import atom.models


def test_importing_the_package_loads_neither_torch_nor_triton():
    code = (
        "import sys, atom.models; "
        "print([name for name in ('torch', 'triton', 'safetensors') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", atom.models.__all__)
def test_every_name_is_there_when_asked_for(name):
    assert getattr(atom.models, name).__name__ if name != "provider" else atom.models.provider.name


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Mistral'"):
        _ = atom.models.Mistral
