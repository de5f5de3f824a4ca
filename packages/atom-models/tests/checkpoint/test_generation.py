from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atom.models.checkpoint.generation import GenerationDefaults, from_gguf, from_hf
from atom.models.errors import CorruptCheckpointError

PATH = Path("folder")


def test_every_end_token_of_the_generation_config_counts() -> None:
    config = {"eos_token_id": 2, "bos_token_id": 1}
    assert from_hf(PATH, config, {"eos_token_id": [128001, 128009]}).eos_token_ids == (128001, 128009)


def test_the_model_config_stands_in_for_what_is_not_stated() -> None:
    config = {"eos_token_id": [2, 3], "bos_token_id": 1}
    assert from_hf(PATH, config, {}) == GenerationDefaults((2, 3), 1)
    assert from_hf(PATH, config, {"eos_token_id": None, "bos_token_id": 7}) == GenerationDefaults((2, 3), 7)
    assert from_hf(PATH, {}, {}) == GenerationDefaults((), None)


def test_sampling_values_count_only_for_a_model_that_samples() -> None:
    stated = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}
    assert from_hf(PATH, {}, {"do_sample": True, **stated}).sampling == stated
    assert from_hf(PATH, {}, {"do_sample": False, **stated}).sampling == {"repetition_penalty": 1.1}
    assert from_hf(PATH, {}, stated).sampling == {"repetition_penalty": 1.1}


def test_gguf_ends_at_text_turn_and_message() -> None:
    metadata = {
        "tokenizer.ggml.eos_token_id": 5,
        "tokenizer.ggml.eot_token_id": 7,
        "tokenizer.ggml.eom_token_id": 5,
        "tokenizer.ggml.bos_token_id": 1,
        "general.sampling.temp": 0.5,
        "general.sampling.penalty_repeat": 1.2,
    }
    assert from_gguf(PATH, metadata) == GenerationDefaults(
        (5, 7), 1, {"temperature": 0.5, "repetition_penalty": 1.2}
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"eos_token_id": "2"}, "eos_token_id is '2', expected token ids"),
        ({"eos_token_id": [2, -1]}, r"eos_token_id is \[2, -1\]"),
        ({"eos_token_id": True}, "eos_token_id is True"),
        ({"bos_token_id": 1.5}, "bos_token_id is 1.5"),
        ({"repetition_penalty": "high"}, "repetition_penalty is 'high', expected a number"),
    ],
)
def test_what_is_no_number_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=f"folder: {message}"):
        from_hf(PATH, {}, config)
