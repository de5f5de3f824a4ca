"""Rendering of the chat template that a checkpoint brings along.

Templates are Jinja programs written for Hugging Face's `apply_chat_template`; they come with downloaded files
and are therefore run in Jinja's immutable sandbox, with the helpers such templates expect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

from atom.runner.errors import ChatTemplateError

Message = Mapping[str, Any]


class ChatTemplate:
    """One parsed template. `render` turns messages into the text a model was trained on."""

    def __init__(self, source: str, *, special_tokens: Mapping[str, str] | None = None) -> None:
        """Parse `source`; `special_tokens` (`bos_token`, `eos_token`, ...) become variables of the template.

        Raises:
            ChatTemplateError: the source is not valid Jinja; the message names the line.
        """
        self.source = source
        self.special_tokens = dict(special_tokens or {})
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the checkpoint's chat template does not parse: line {error.lineno}: {error.message}; "
                "use --raw to prompt without it"
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Return the prompt text for `messages`, ended so that the assistant speaks next.

        Raises:
            ChatTemplateError: a message has no role, or the template refused or failed on these messages.
        """
        try:
            return self._template.render(
                {
                    **self.special_tokens,
                    **variables,
                    "messages": [_plain_message(index, message) for index, message in enumerate(messages)],
                    "tools": None if tools is None else [dict(tool) for tool in tools],
                    "documents": variables.get("documents"),
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except ChatTemplateError:
            raise
        except Exception as error:  # a template is a program of someone else's: anything may come out of it
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ChatTemplateError(
                f"the checkpoint's chat template failed on these {len(messages)} messages: {reason}"
            ) from error


def _plain_message(index: int, message: Message) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ChatTemplateError(f"messages[{index}]: expected an object with a text field 'role'")
    # Templates test for presence: a key that holds nothing must look absent, not render as "None".
    plain = {key: value for key, value in message.items() if value is not None}
    if isinstance(plain.get("content"), list):
        plain["content"] = _joined_text(index, plain["content"])
    return plain


def _joined_text(index: int, parts: list[Any]) -> str:
    texts = []
    for part in parts:
        if (
            not isinstance(part, Mapping)
            or part.get("type") != "text"
            or not isinstance(part.get("text"), str)
        ):
            raise ChatTemplateError(f"messages[{index}]: only content parts of type 'text' are supported")
        texts.append(part["text"])
    return "".join(texts)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks assistant text for training; a prompt is its body."""

    tags = {"generation"}  # noqa: RUF012  Jinja's own way of naming the tags

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which no model was trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
