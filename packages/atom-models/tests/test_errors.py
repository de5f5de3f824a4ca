from __future__ import annotations

import inspect
import re

import pytest

from atom.models import errors


def test_the_drawing_is_the_tree() -> None:
    drawn = re.findall(r"^[│├└─ ]*(\w+Error)\b", inspect.getdoc(errors) or "", flags=re.MULTILINE)
    defined = [name for name, value in vars(errors).items() if inspect.isclass(value)]
    assert sorted(drawn) == sorted(defined) == errors.__all__


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name != "ModelsError"])
def test_a_bad_checkpoint_is_a_value_error_of_this_package(name: str) -> None:
    error = getattr(errors, name)
    assert issubclass(error, errors.ModelsError)
    assert issubclass(error, errors.CheckpointError)
    assert issubclass(error, ValueError)
