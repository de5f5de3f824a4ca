"""What a caller may give as a prompt: text, chat messages or token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from atom.runner.errors import PromptError, TokenizerError

if TYPE_CHECKING:
    from atom.runner.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or chat messages with `role` and `content`."""
_FORMS = "text, a list of token ids or a list of chat messages"


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list. A list of numbers or of messages is one prompt.

    Raises:
        PromptError: it is neither a prompt nor a list.
    """
    if isinstance(prompts, str):
        return [prompts]
    if not _is_list(prompts):
        raise PromptError(f"prompts are {_FORMS}, or a list of those, not {type(prompts).__name__}")
    if prompts and isinstance(prompts[0], int | Mapping):
        return [cast("Prompt", prompts)]
    return cast("list[Prompt]", list(prompts))


def encode_prompt(
    prompt: Prompt, tokenizer: Tokenizer | None, request_id: str
) -> tuple[str | None, Sequence[int]]:
    """The prompt's text, where it has one, and its token ids; a chat goes through the checkpoint's template.

    Raises:
        PromptError: text or a chat without a tokenizer, a chat that the template refuses, or neither of the
            three.
    """
    if isinstance(prompt, str):
        text, special = prompt, True
    elif _is_chat(prompt):
        text, special = "", False
    elif _is_list(prompt):
        return None, cast("Sequence[int]", prompt)
    else:
        raise PromptError(f"request {request_id}: a prompt is {_FORMS}, not {type(prompt).__name__}")
    if tokenizer is None:
        raise PromptError(
            f"request {request_id}: this checkpoint has no tokenizer, so it takes token ids only "
            "(prompt_token_ids in a prompts file)"
        )
    try:
        if not special:
            text = tokenizer.render_chat(cast("Sequence[Mapping[str, Any]]", prompt))
        return text, tokenizer.encode(text, add_special_tokens=special)
    except TokenizerError as error:
        raise PromptError(f"request {request_id}: {error}") from error


def token_ids_of(prompt: Prompt) -> list[int]:
    """The token ids a prompt was given as; empty for text and chats."""
    if isinstance(prompt, str) or not _is_list(prompt) or _is_chat(prompt):
        return []
    return list(cast("Sequence[int]", prompt))


def _is_list(value: Any) -> bool:
    # Bytes are numbers too, but a text that somebody forgot to decode is no list of token ids.
    return isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview)


def _is_chat(prompt: Any) -> bool:
    return _is_list(prompt) and bool(prompt) and isinstance(prompt[0], Mapping)
