from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import atom.config


def test_all_is_sorted_and_names_every_public_object() -> None:
    public = {
        name
        for name, value in vars(atom.config).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert set(atom.config.__all__) == public
    assert len(atom.config.__all__) == len(public)


def test_importing_needs_the_standard_library_alone() -> None:
    script = (
        "import sys; before = set(sys.modules); import atom.config; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names) - {'atom'}))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
