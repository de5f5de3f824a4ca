"""Each package's `__init__.py` is its public surface: `__all__` is sorted, complete and true."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

PACKAGES = ["compile", "config", "graphs", "models", "runner"]
ROOT = Path(__file__).parent.parent


def init_of(package: str) -> ast.Module:
    path = ROOT / f"packages/atom-{package}/src/atom/{package}/__init__.py"
    return ast.parse(path.read_text())


def re_exported(tree: ast.Module) -> set[str]:
    """Names taken from the package's own modules, those for type checkers alone included."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("atom.")
        for alias in node.names
    }


def defined(tree: ast.Module) -> set[str]:
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return {name for name in functions if not name.startswith("_")}


def spelling_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions; alphabetical within each."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_sorted_and_lists_each_name_once(package: str) -> None:
    names = importlib.import_module(f"atom.{package}").__all__
    assert list(names) == sorted(set(names), key=spelling_order)
    assert names


@pytest.mark.parametrize("package", PACKAGES)
def test_all_lists_what_the_package_brings_in(package: str) -> None:
    tree = init_of(package)
    assert set(importlib.import_module(f"atom.{package}").__all__) == re_exported(tree) | defined(tree)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_listed_name_exists_and_has_a_docstring(package: str) -> None:
    module = importlib.import_module(f"atom.{package}")
    assert module.__doc__
    for name in module.__all__:
        value = getattr(module, name)
        if callable(value):
            assert (value.__doc__ or "").strip(), f"atom.{package}.{name} has no docstring"


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_is_typed_and_the_namespace_belongs_to_none(package: str) -> None:
    source = ROOT / f"packages/atom-{package}/src/atom"
    assert (source / package / "py.typed").is_file()
    assert not (source / "__init__.py").exists()
