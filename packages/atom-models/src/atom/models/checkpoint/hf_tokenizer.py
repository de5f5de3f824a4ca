"""The tokenizer of a Hugging Face folder: `tokenizer.json`, `tokenizer_config.json`, the chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atom.models.checkpoint.json_document import parse_object, read_object, read_text
from atom.models.checkpoint.names import shown
from atom.models.checkpoint.tokenizer_data import TokenizerData, starts_with
from atom.models.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NAMED_TOKENS = ("unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_hf_tokenizer(folder: Path) -> TokenizerData | None:
    """The folder's tokenizer, None if it has no `tokenizer.json`.

    Raises:
        CorruptCheckpointError: one of the files is damaged.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    text = read_text(path)
    description = parse_object(path, text)
    if not isinstance(description.get("model"), dict):
        raise CorruptCheckpointError(f"{path}: no object 'model', so this describes no tokenizer")
    config_path = folder / "tokenizer_config.json"
    settings = read_object(config_path) if config_path.is_file() else {}
    named = {key: _token_text(config_path, key, settings[key]) for key in _NAMED_TOKENS if settings.get(key)}
    bos = _token_text(config_path, "bos_token", settings["bos_token"]) if settings.get("bos_token") else None
    eos = _token_text(config_path, "eos_token", settings["eos_token"]) if settings.get("eos_token") else None
    return TokenizerData(
        json=text,
        chat_template=_chat_template(folder, config_path, settings),
        bos_token=bos,
        eos_token=eos,
        special_tokens=named,
        # The description decides, as in transformers; `add_bos_token` in the settings may be stale.
        add_bos=starts_with(description.get("post_processor"), bos),
    )


def _token_text(path: Path, key: str, value: object) -> str:
    # A token is its text, or an object with flags around it.
    text = value.get("content") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise CorruptCheckpointError(f"{path}: {key} is {shown(value)}, expected a token's text")
    return text


def _chat_template(folder: Path, config_path: Path, settings: Mapping[str, Any]) -> str | None:
    """The default template: its own file where there is one, else in the tokenizer's settings."""
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return read_text(jinja)
    own = folder / "chat_template.json"
    if own.is_file():
        path, template = own, read_object(own).get("chat_template")
    else:
        path, template = config_path, settings.get("chat_template")
    if isinstance(template, list):  # several, each with a name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise CorruptCheckpointError(f"{path}: chat_template is {shown(template)}, expected text")
    return template
