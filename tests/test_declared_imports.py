"""What a package's sources import, its `pyproject.toml` declares, and the other way round."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGES = sorted((Path(__file__).parent.parent / "packages").iterdir())
USED_WITHOUT_AN_IMPORT = {"triton"}
"""Loaded by torch or lazily by name; declared because a version is needed."""
CHOSEN_BY_TORCH = {"sympy"}
"""Torch's symbolic sizes are made of it, so its version is torch's to declare."""

WHERE_INSTALLED = {"depyf"}
"""Makes debug dumps easier to read for those who have it; nothing needs it."""


def imported(package: Path) -> set[str]:
    """Distributions that the sources import; our own are named after their import."""
    found = set()
    providers = importlib.metadata.packages_distributions()
    for source in package.glob("src/**/*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                top = name.partition(".")[0]
                if top == "atom":
                    found.add(ours(name))
                elif top not in sys.stdlib_module_names:
                    found.update(distribution.lower() for distribution in providers.get(top, [top]))
    return found - {package.name}


def ours(module: str) -> str:
    """The distribution of a module of ours: by its second name, or by its home for an alias."""
    package = [*module.split("."), ""][1]
    if any(other.name == f"atom-{package}" for other in PACKAGES):
        return f"atom-{package}"
    return next(p.name for p in PACKAGES if (p / "src" / Path(*module.split(".")[:2])).exists())


def declared(package: Path, *, extras: bool) -> set[str]:
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    optional = [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
    lines = [*project.get("dependencies", []), *(optional if extras else [])]
    return {re.split(r"[\s<>=!~\[;]", line, maxsplit=1)[0].lower() for line in lines}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_every_import_is_declared(package: Path) -> None:
    assert imported(package) - declared(package, extras=True) - CHOSEN_BY_TORCH - WHERE_INSTALLED == set()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_every_declared_dependency_is_imported(package: Path) -> None:
    assert declared(package, extras=False) - imported(package) - USED_WITHOUT_AN_IMPORT == set()
