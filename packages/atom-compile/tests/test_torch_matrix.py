"""The environments that run this suite on other versions of torch."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent


def test_the_locked_environment_has_the_torch_of_the_lock_file() -> None:
    lock = PACKAGE.parent.parent / "uv.lock"
    if not lock.is_file():
        pytest.skip("not in the workspace")
    packages = tomllib.loads(lock.read_text())["package"]
    (version,) = {package["version"] for package in packages if package["name"] == "torch"}
    envs = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["tool"]["hatch"]["envs"]["matrix"]
    pinned = {
        entry["if"][0]: entry["value"] for entry in envs["overrides"]["matrix"]["torch"]["dependencies"]
    }
    assert pinned["locked"] == f"torch=={version.partition('+')[0]}"
    assert set(pinned) == set(envs["matrix"][0]["torch"])
