from __future__ import annotations

import json

import pytest
import tokenizers

from atom.models.checkpoint.gguf_pretokenizers import PRE_TOKENIZERS


def words(scheme: str, text: str) -> list[str]:
    """The words a scheme cuts `text` into, with the byte alphabet's space written as one."""
    description = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": PRE_TOKENIZERS[scheme].description(),
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    made = tokenizers.Tokenizer.from_str(json.dumps(description)).pre_tokenizer
    assert made is not None
    return [word.replace("Ġ", " ").replace("Ċ", "\n") for word, _ in made.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("gpt-2", ["It", "'s", " 12345", " CamelCase", "!!", "\n\n", " end"]),
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", "5", " CamelCase", "!!", "\n\n", " end"]),
        ("llama-bpe", ["It", "'s", " ", "123", "45", " CamelCase", "!!\n\n", " end"]),
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", "5", " CamelCase", "!!\n\n", " end"]),
        ("tekken", ["It", "'s", " ", "1", "2", "3", "4", "5", " Camel", "Case", "!!\n\n", " end"]),
    ],
)
def test_each_scheme_cuts_in_its_own_way(scheme: str, expected: list[str]) -> None:
    assert words(scheme, "It's 12345 CamelCase!!\n\n end") == expected


@pytest.mark.parametrize("scheme", PRE_TOKENIZERS)
def test_no_scheme_loses_text(scheme: str) -> None:
    text = "A b\n\n  c1 23 4567 é!?"
    assert "".join(words(scheme, text)).replace("Ã©", "é") == text
