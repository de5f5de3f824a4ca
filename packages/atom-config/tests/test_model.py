from __future__ import annotations

import pytest

from atom.config import ConfigError, ModelConfig


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "CUDA:12"])
def test_a_device_is_spelled_as_torch_does(device: str) -> None:
    assert ModelConfig(device=device).device == device.lower()


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "rocm", None, 0])
def test_another_device_is_refused_with_what_is_allowed(device: str) -> None:
    with pytest.raises(ConfigError, match="auto, cpu, cuda, cuda:<number>"):
        ModelConfig(device=device)


def test_a_dtype_is_one_of_four_words_in_any_case() -> None:
    assert ModelConfig(dtype="BFloat16").dtype == "bfloat16"
    with pytest.raises(ConfigError, match="auto, float32, bfloat16, float16"):
        ModelConfig(dtype="fp32")


@pytest.mark.parametrize("length", [0, 1, -5, 1.5, True])
def test_a_context_has_room_for_a_prompt_and_an_answer(length: int) -> None:
    with pytest.raises(ConfigError, match="at least 2, or none"):
        ModelConfig(max_model_len=length)
