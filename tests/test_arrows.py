"""Arrows between the packages point one way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINT_IMPORTS = Path(sys.executable).parent / "lint-imports"


def lint(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(LINT_IMPORTS), "--no-cache", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_no_package_imports_one_above_it_or_beside_it() -> None:
    result = lint()
    assert result.returncode == 0, result.stdout
    assert "1 kept, 0 broken" in result.stdout


def test_the_check_finds_an_arrow_that_points_up(tmp_path: Path) -> None:
    contract = tmp_path / ".importlinter"
    contract.write_text(
        "[importlinter]\nroot_packages =\n    atom.config\n    atom.graphs\n    atom.runner\n"
        "[importlinter:contract:1]\nname = upside down\ntype = layers\n"
        "layers =\n    atom.config\n    atom.graphs\n    atom.runner\n"
    )
    result = lint("--config", str(contract), cwd=tmp_path)
    assert result.returncode == 1
    assert "atom.runner is not allowed to import" in result.stdout


def test_the_configuration_loads_neither_torch_nor_anything_else_installed() -> None:
    code = (
        "import sys; before = set(sys.modules); import atom.config\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['atom']"
