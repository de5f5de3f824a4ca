"""A checkpoint's tokenizer as plain data: a `tokenizers` description, special tokens, a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenizerData:
    """What is needed to turn text into ids and back, without the library that does it.

    Attributes:
        json: text of a `tokenizer.json`; GGUF vocabularies are converted to this form.
        chat_template: Jinja source, None if the checkpoint has none.
        bos_token: text of the start token, None if there is none.
        eos_token: text of the end token.
        special_tokens: further tokens by the name templates use (`unk_token`, `pad_token`, ...).
        add_bos: whether plain prompts start with `bos_token`. The description's post-processor agrees with
            it.
    """

    json: str
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    add_bos: bool = False


def template_post_processor(
    *, bos: tuple[str, int] | None = None, eos: tuple[str, int] | None = None
) -> dict[str, Any]:
    """A `TemplateProcessing` description: `bos` before a text and `eos` after it, each as `(text, id)`."""

    def sequence(name: str, type_id: int) -> list[dict[str, Any]]:
        around = [
            [{"SpecialToken": {"id": token[0], "type_id": type_id}}] if token is not None else []
            for token in (bos, eos)
        ]
        return [*around[0], {"Sequence": {"id": name, "type_id": type_id}}, *around[1]]

    return {
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": sequence("A", 0) + sequence("B", 1),
        "special_tokens": {
            text: {"id": text, "ids": [id_], "tokens": [text]} for text, id_ in filter(None, (bos, eos))
        },
    }


def starts_with(post_processor: object, token: str | None) -> bool:
    """Whether a post-processor description puts `token` in front of every text."""
    if token is None or not isinstance(post_processor, Mapping):
        return False
    if post_processor.get("type") == "Sequence":
        parts = post_processor.get("processors")
        return isinstance(parts, Sequence) and any(starts_with(part, token) for part in parts)
    if post_processor.get("type") in ("BertProcessing", "RobertaProcessing"):
        cls = post_processor.get("cls")
        return isinstance(cls, Sequence) and bool(cls) and cls[0] == token
    single = post_processor.get("single")
    if not isinstance(single, Sequence) or not single or not isinstance(single[0], Mapping):
        return False
    first = single[0].get("SpecialToken")
    return isinstance(first, Mapping) and first.get("id") == token
