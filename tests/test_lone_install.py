"""Each wheel installed alone, in an environment with nothing but what it declares, imports and works.

Third-party packages come from the lock file, so no index is asked where uv's cache holds them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
SIBLINGS = {
    "atom-config": [],
    "atom-compile": ["atom-config"],
    "atom-graphs": ["atom-config"],
    "atom-models": ["atom-compile", "atom-config", "atom-graphs"],
    "atom-runner": ["atom-compile", "atom-config", "atom-graphs"],
}
"""Each package, and those of ours that it may bring along."""
NEEDS_AN_EXTRA: dict[str, str] = {}
"""Modules that only an extra makes importable, by the words that their error must hold."""

IMPORT_EVERYTHING = """
import importlib, json, pkgutil, sys
import atom
failed = {}
for found in pkgutil.walk_packages(atom.__path__, "atom.", onerror=lambda name: None):
    try:
        importlib.import_module(found.name)
    except Exception as error:
        failed[found.name] = f"{type(error).__name__}: {error}"
print(json.dumps({"failed": failed, "torch": "torch" in sys.modules, "modules": sorted(
    name for name in sys.modules if name.startswith("atom."))}))
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")]


def uv(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["uv", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def uv_or_skip(*arguments: str, **environment: str) -> None:
    """Run uv; where that needs a network that is not there, skip, and fail for any other reason."""
    result = uv(*arguments, **environment)
    if result.returncode and ("error sending request" in result.stderr or "offline" in result.stderr):
        pytest.skip(f"uv {arguments[0]} needs the network: {result.stderr.strip().splitlines()[-1]}")
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    uv_or_skip("build", "--all-packages", "--wheel", "--out-dir", str(folder))
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "environment"
    shutil.rmtree(tmp_path / "environment", ignore_errors=True)


def install(package: str, wheels: Path, environment: Path) -> Path:
    """A fresh environment with the wheel, those of ours it depends on, and what these declare."""
    where = {"UV_PROJECT_ENVIRONMENT": str(environment), "VIRTUAL_ENV": str(environment)}
    uv_or_skip("sync", "--frozen", "--no-dev", "--no-install-workspace", "--package", package, **where)
    ours = ["--no-index", "--no-deps", "--find-links", str(wheels), package, *SIBLINGS[package]]
    uv_or_skip("pip", "install", *ours, **where)
    checked = uv("pip", "check", **where)
    assert checked.returncode == 0, checked.stderr
    return environment / "bin" / "python"


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), "-I", *arguments],
        cwd=python.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize("package", SIBLINGS)
def test_a_wheel_alone_imports_with_all_its_modules(package: str, wheels: Path, environment: Path) -> None:
    python = install(package, wheels, environment)
    result = run(python, "-c", IMPORT_EVERYTHING)
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout.splitlines()[-1])
    unexpected = {
        name: error
        for name, error in seen["failed"].items()
        if not (name in NEEDS_AN_EXTRA and NEEDS_AN_EXTRA[name] in error)
    }
    assert unexpected == {}
    assert package.replace("-", ".") in seen["modules"]
    if package == "atom-config":
        assert not seen["torch"]
    if package == "atom-graphs":
        readme_runs(package, python)
    if package == "atom-runner":
        the_program_says_what_to_install(python)


def readme_runs(package: str, python: Path) -> None:
    """The README's Python blocks work with this package alone."""
    text = (ROOT / "packages" / package / "README.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))
    assert code
    result = run(python, "-c", code)
    assert result.returncode == 0, result.stderr


def the_program_says_what_to_install(python: Path) -> None:
    """Without a checkpoint and a model package the command ends with the line that installs one."""
    help_text = run(python, "-m", "atom.runner.cli.app", "--help")
    assert help_text.returncode == 0, help_text.stderr
    bare = run(python, "-m", "atom.runner.cli.app")
    assert (bare.returncode, bare.stdout) == (2, "")
    assert bare.stderr.splitlines()[-1].startswith("atom-runner: error: ")
    assert "pip install" in bare.stderr
    models = run(python, "-m", "atom.runner.cli.app", "models")
    assert (models.returncode, models.stdout) == (2, "")
    assert models.stderr == "atom-runner: error: no model package is installed: pip install atom-models\n"
