from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atom.models.checkpoint.hf_config import normalise_config
from atom.models.errors import ModelConfigError

PATH = Path("config.json")
LLAMA = {"architectures": ["LlamaForCausalLM"]}


def normalised(**fields: Any) -> dict[str, Any]:
    return normalise_config(PATH, {**LLAMA, **fields}, saved_dtype="float16")


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}


@pytest.mark.parametrize(
    ("fields", "theta", "scaling"),
    [
        ({"rope_theta": 5e5, "rope_scaling": LLAMA3}, 5e5, LLAMA3),
        ({"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}, 5e5, LLAMA3),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 1e4, None),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2}},
            1e4,
            {"rope_type": "linear", "factor": 2},
        ),
        ({"rope_theta": 1e4, "rope_scaling": None}, 1e4, None),
        ({"rope_theta": 1e4}, 1e4, None),
        ({"rope_theta": 1e4, "rope_scaling": {}}, 1e4, None),
    ],
)
def test_rope_comes_out_in_one_form(fields: dict[str, Any], theta: float, scaling: Any) -> None:
    config = normalised(**fields)
    assert config["rope_theta"] == theta
    assert config["rope_scaling"] == scaling
    assert "rope_parameters" not in config


def test_rope_given_a_kind_of_layer_is_left_to_the_model() -> None:
    parameters = {"full": {"rope_type": "default", "rope_theta": 1e6}, "sliding": {"rope_theta": 1e4}}
    assert normalised(rope_parameters=parameters)["rope_parameters"] == parameters


def test_a_partial_rotation_is_lifted_out() -> None:
    config = normalised(
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    )
    assert config["partial_rotary_factor"] == 0.5


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float32"}, "float32"),
        ({"dtype": "torch.float16"}, "float16"),
        ({}, "float16"),
        ({"torch_dtype": None}, "float16"),
    ],
)
def test_the_dtype_has_one_name(fields: dict[str, Any], dtype: str) -> None:
    config = normalised(**fields)
    assert config["dtype"] == dtype
    assert "torch_dtype" not in config


def test_other_fields_are_kept_and_the_original_is_not_touched() -> None:
    original = {**LLAMA, "hidden_size": 64, "torch_dtype": "float32"}
    assert normalise_config(PATH, original, saved_dtype="float32")["hidden_size"] == 64
    assert original == {**LLAMA, "hidden_size": 64, "torch_dtype": "float32"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": None}, "architectures is None, expected a list of one name"),
        ({"architectures": []}, "architectures is"),
        ({"architectures": ["A", "B"]}, "architectures is"),
        ({"architectures": [3]}, "architectures is"),
        ({"dtype": "int4"}, "dtype is 'int4', expected one of float32, float16, bfloat16"),
        ({"dtype": {"a": 1}}, "dtype is"),
        ({"rope_scaling": 3}, "RoPE scaling is 3, expected an object"),
        ({"rope_scaling": {"factor": 2.0, "other": 1}}, "has no rope_type"),
    ],
)
def test_fields_that_are_no_such_thing_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=rf"config\.json: .*{message}"):
        normalised(**fields)
