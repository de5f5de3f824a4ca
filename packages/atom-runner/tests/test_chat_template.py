from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from atom.runner.chat_template import ChatTemplate
from atom.runner.errors import ChatTemplateError

CHATML = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "Who?"}]


def render(source: str, messages: list[dict[str, Any]] | None = None, **variables: Any) -> str:
    return ChatTemplate(source, special_tokens={"bos_token": "<s>"}).render(messages or QUESTION, **variables)


def test_messages_and_special_tokens_reach_the_template() -> None:
    assert render(CHATML) == "<s><|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"


def test_without_a_generation_prompt_the_text_ends_with_the_last_message() -> None:
    assert render(CHATML, add_generation_prompt=False).endswith("Who?<|im_end|>\n")


def test_lines_that_hold_only_a_block_leave_no_whitespace() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}"
    assert render(source) == "user\n"


def test_to_json_keeps_characters_that_html_would_escape() -> None:
    assert render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    source = "{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}"
    assert render(source) == '{\n "a": [\n  2\n ],\n "b": 1\n}'


def test_the_date_of_today_can_be_printed() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)


def test_loop_controls_and_generation_blocks_are_understood() -> None:
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "Who?"


def test_tools_and_further_variables_reach_the_template() -> None:
    template = ChatTemplate("{{ tools[0].name }} {{ enable_thinking }}")
    assert template.render(QUESTION, tools=[{"name": "clock"}], enable_thinking=False) == "clock False"


def test_keys_that_hold_nothing_look_absent() -> None:
    source = "{% for m in messages %}{{ 'calls' if 'tool_calls' in m else 'none' }}{% endfor %}"
    assert render(source, [{"role": "user", "content": "x", "tool_calls": None}]) == "none"


def test_text_parts_are_joined_and_others_refused() -> None:
    parts = [{"type": "text", "text": "Who"}, {"type": "text", "text": "?"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "Who?"
    with pytest.raises(ChatTemplateError, match=r"messages\[0\]: only content parts of type 'text'"):
        render(CHATML, [{"role": "user", "content": [{"type": "image_url"}]}])


def test_a_message_without_role_is_named_by_its_place() -> None:
    with pytest.raises(ChatTemplateError, match=r"messages\[1\]: .* 'role'"):
        render(CHATML, [*QUESTION, {"content": "and?"}])


def test_a_template_may_refuse_messages_with_its_own_words() -> None:
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must\n alternate') }}")


@pytest.mark.parametrize("source", ["{{ messages[7].content.title() }}", "{{ 1 / 0 }}", "{{ messages + 1 }}"])
def test_a_template_that_fails_gives_one_line_that_says_so(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="chat template failed on these 1 messages") as caught:
        render(source)
    assert "\n" not in str(caught.value)


def test_a_template_that_does_not_parse_names_its_line() -> None:
    with pytest.raises(ChatTemplateError, match="does not parse: line 2"):
        ChatTemplate("{{ bos_token }}\n{% for %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{% for i in range(100000000) %}{% endfor %}",
    ],
)
def test_the_sandbox_keeps_templates_from_reaching_out(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(source)
