"""Layer errors are the package's own, and of the kind a caller would expect."""

from __future__ import annotations

import pytest

from atom.models.errors import ModelsError
from atom.models.layers import AttentionSetupError, LayerArgumentError, LayerError


@pytest.mark.parametrize(
    ("error", "kind"), [(LayerArgumentError, ValueError), (AttentionSetupError, RuntimeError)]
)
def test_every_error_is_a_models_error_and_a_standard_one(error, kind):
    assert issubclass(error, LayerError)
    assert issubclass(error, ModelsError)
    assert issubclass(error, kind)
