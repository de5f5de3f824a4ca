"""What callers may pass as prompts."""

from __future__ import annotations

import pytest

from atom.runner import PromptError
from atom.runner.errors import ChatTemplateError
from atom.runner.prompt import as_prompts, encode_prompt, token_ids_of


class LetterTokenizer:
    """One id a letter; a chat is its contents with a bar after each."""

    def encode(self, text, *, add_special_tokens=True):
        return [1] * add_special_tokens + [ord(letter) for letter in text]

    def render_chat(self, messages):
        if messages[0]["role"] == "nobody":
            raise ChatTemplateError("no such role")
        return "".join(message["content"] + "|" for message in messages)


CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("text", ["text"]),
        ([1, 2], [[1, 2]]),
        (CHAT, [CHAT]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2]], [[1], [2]]),
        ([[1], "a", CHAT], [[1], "a", CHAT]),
        ([[]], [[]]),
        ([], []),
        (("a", "b"), ["a", "b"]),
    ],
)
def test_one_or_several_prompts_become_a_list(given, expected):
    assert as_prompts(given) == expected


def test_text_gets_the_tokenizers_start_token_and_a_chat_brings_its_own():
    tokenizer = LetterTokenizer()
    assert encode_prompt("ab", tokenizer, "r") == ("ab", [1, 97, 98])
    assert encode_prompt(CHAT, tokenizer, "r") == ("a|b|", [97, 124, 98, 124])
    assert encode_prompt([5, 6], tokenizer, "r") == (None, [5, 6])


def test_a_chat_that_the_template_refuses_is_an_error_of_its_request():
    with pytest.raises(PromptError, match="request r: no such role"):
        encode_prompt([{"role": "nobody", "content": ""}], LetterTokenizer(), "r")


@pytest.mark.parametrize("prompts", [None, 5, {"role": "user", "content": "a"}, {1, 2}, b"text", iter(["a"])])
def test_what_is_no_list_of_prompts_is_an_error(prompts):
    with pytest.raises(PromptError, match=f"or a list of those, not {type(prompts).__name__}"):
        as_prompts(prompts)


@pytest.mark.parametrize("prompt", [3, None, {"role": "user"}, {1, 2}, b"text", bytearray(b"a")])
def test_anything_else_is_an_error(prompt):
    with pytest.raises(PromptError, match=f"not {type(prompt).__name__}"):
        encode_prompt(prompt, LetterTokenizer(), "r")


def test_only_token_ids_are_token_ids():
    assert [token_ids_of(p) for p in ([1, 2], "a", CHAT, None, b"a")] == [[1, 2], [], [], [], []]
