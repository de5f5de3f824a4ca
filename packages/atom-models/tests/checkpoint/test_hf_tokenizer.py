"""A folder's tokenizer gives the ids that transformers gives for the same folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers

from atom.models.checkpoint.gguf import open_gguf
from atom.models.checkpoint.hf_tokenizer import read_hf_tokenizer
from atom.models.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def description(smollm2_path: Path) -> dict[str, Any]:
    data = open_gguf(smollm2_path).tokenizer
    assert data is not None
    parsed: dict[str, Any] = json.loads(data.json)
    return parsed


def write(folder: Path, description: dict[str, Any], **settings: Any) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(description))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_a_folder_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    assert read_hf_tokenizer(tmp_path) is None


def test_what_transformers_saves_is_read_back(smollm2_path: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    public = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    public.save_pretrained(tmp_path)
    data = read_hf_tokenizer(tmp_path)
    assert data is not None
    assert data.chat_template == public.chat_template
    assert (data.bos_token, data.eos_token, data.add_bos) == ("<|im_start|>", "<|im_end|>", False)
    assert data.special_tokens == {"unk_token": "<|endoftext|>", "pad_token": "<|im_end|>"}
    text = "<|im_start|>user\nWhat is 2+2? 🎉<|im_end|>"
    assert tokenizers.Tokenizer.from_str(data.json).encode(text).ids == public(text)["input_ids"]


@pytest.mark.parametrize("stored_with_bos", [True, False])
@pytest.mark.parametrize("setting", [True, False, None])
def test_the_stored_description_decides_about_the_start_token_as_in_transformers(
    setting: bool | None, stored_with_bos: bool, description: dict[str, Any], tmp_path: Path
) -> None:
    from transformers import PreTrainedTokenizerFast

    made = tokenizers.Tokenizer.from_str(json.dumps(description))
    if stored_with_bos:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
    settings: dict[str, Any] = {
        "bos_token": "<|im_start|>",
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"},
    }
    if setting is not None:
        settings["add_bos_token"] = setting
    write(tmp_path, json.loads(made.to_str()), **settings)
    data = read_hf_tokenizer(tmp_path)
    assert data is not None
    public = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ids = tokenizers.Tokenizer.from_str(data.json).encode("Hi there").ids
    assert ids == public("Hi there")["input_ids"]
    assert data.add_bos is (ids[0] == 1) is stored_with_bos
    assert data.eos_token == "<|im_end|>"


@pytest.mark.parametrize(
    ("settings", "files", "expected"),
    [
        ({"chat_template": "inline"}, {}, "inline"),
        ({"chat_template": "inline"}, {"chat_template.jinja": "own file"}, "own file"),
        ({}, {"chat_template.json": '{"chat_template": "older own file"}'}, "older own file"),
        (
            {"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]},
            {},
            "d",
        ),
        ({"chat_template": [{"name": "rag", "template": "r"}]}, {}, None),
        ({}, {}, None),
    ],
)
def test_the_chat_template_is_found_in_each_of_its_homes(
    settings: dict[str, Any],
    files: dict[str, str],
    expected: str | None,
    description: dict[str, Any],
    tmp_path: Path,
) -> None:
    write(tmp_path, description, **settings)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    data = read_hf_tokenizer(tmp_path)
    assert data is not None
    assert data.chat_template == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bos_token": 5}, "bos_token is 5, expected a token's text"),
        ({"pad_token": {"content": None}}, "pad_token is"),
        ({"chat_template": 5}, "chat_template is 5, expected text"),
    ],
)
def test_settings_that_are_no_such_thing_are_named(
    settings: dict[str, Any], message: str, description: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, description, **settings)
    with pytest.raises(CorruptCheckpointError, match=rf"tokenizer_config\.json: {message}"):
        read_hf_tokenizer(tmp_path)


def test_a_file_that_describes_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(CorruptCheckpointError, match=r"tokenizer\.json: no object 'model'"):
        read_hf_tokenizer(tmp_path)
