"""Which form the settings and the checkpoint ask for."""

from __future__ import annotations

import pytest
import torch

from atom.config import ModelConfig
from atom.models.checkpoint import TensorInfo
from atom.models.layers.packing import weight_form

CPU = torch.device("cpu")


def stored(*dtypes: str) -> list[TensorInfo]:
    norm = TensorInfo("norm", (8,), "float32", 32)
    return [norm, *(TensorInfo(f"m{i}", (8, 8), dtype, 64) for i, dtype in enumerate(dtypes))]


@pytest.mark.parametrize(
    ("dtypes", "form"),
    [
        (("Q4_1", "Q8_0"), "half"),
        (("float16",), "half"),
        (("bfloat16",), "half"),
        (("float32",), "exact"),
        (("Q4_1", "float32"), "exact"),
    ],
)
def test_auto_halves_what_the_checkpoint_has_no_more_of(dtypes, form):
    assert weight_form(ModelConfig(), stored(*dtypes), dtype=torch.float32, device=CPU) == form


def test_a_stated_dtype_is_exact():
    settings = ModelConfig(dtype="float32")
    assert weight_form(settings, stored("Q4_1"), dtype=torch.float32, device=CPU) == "exact"


def test_other_devices_and_dtypes_are_exact():
    cuda = torch.device("cuda")
    assert weight_form(ModelConfig(), stored("Q4_1"), dtype=torch.float32, device=cuda) == "exact"
    assert weight_form(ModelConfig(), stored("bfloat16"), dtype=torch.bfloat16, device=CPU) == "exact"


def test_int8_is_used_when_asked_for():
    settings = ModelConfig(quantization="int8", dtype="float32")
    assert weight_form(settings, stored("float32"), dtype=torch.float32, device=CPU) == "int8"
