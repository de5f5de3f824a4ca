from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from atom.runner.errors import ChatTemplateError, PromptError, TokenizerError
from atom.runner.loader import open_checkpoint
from atom.runner.tokenizer import Tokenizer

MANY_SCRIPTS = "Añb €5 漢字 👩‍🚀 🇫🇷 नमस्ते\r\n\tx  y \x00 é ﷽"


@dataclass
class Data:
    json: str
    chat_template: str | None = None
    bos_token: str | None = "<s>"
    eos_token: str | None = "</s>"
    special_tokens: dict[str, str] = field(default_factory=dict)
    add_bos: bool = False


def byte_level() -> tokenizers.Tokenizer:
    """Every byte is a token; ids 256 and 257 are the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(["<s>", "</s>"])
    return fast


def data(fast: tokenizers.Tokenizer | None = None, **fields: Any) -> Data:
    return Data((fast or byte_level()).to_str(), **fields)


def test_text_of_any_script_survives_the_way_there_and_back() -> None:
    tokenizer = Tokenizer(data())
    ids = tokenizer.encode(MANY_SCRIPTS)
    assert len(ids) == len(MANY_SCRIPTS.encode())
    assert tokenizer.decode(ids) == MANY_SCRIPTS


def test_special_tokens_have_ids_and_no_text_unless_asked_for() -> None:
    tokenizer = Tokenizer(data())
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.vocab_size) == (256, 257, 258)
    ids = tokenizer.encode("a</s>b")
    assert ids[1] == 257
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a</s>b"


def test_a_start_token_is_put_in_front_once_and_only_where_wanted() -> None:
    wanted = Tokenizer(data(add_bos=True))
    assert wanted.encode("hi")[0] == 256
    assert wanted.encode("<s>hi").count(256) == 1
    assert wanted.encode("hi", add_special_tokens=False)[0] != 256
    assert Tokenizer(data()).encode("hi")[0] != 256


def test_a_start_token_from_the_tokenizers_own_template_is_not_doubled() -> None:
    fast = byte_level()
    fast.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    assert Tokenizer(data(fast, add_bos=True)).encode("hi").count(256) == 1


def test_a_stored_length_limit_does_not_cut_prompts() -> None:
    fast = byte_level()
    fast.enable_truncation(4)
    fast.enable_padding(length=8)
    assert len(Tokenizer(data(fast)).encode("0123456789")) == 10
    assert len(Tokenizer(data(fast)).encode("01")) == 2


def test_ids_outside_the_vocabulary_have_no_text() -> None:
    tokenizer = Tokenizer(data())
    assert tokenizer.decode([999_999]) == ""
    assert tokenizer.token_bytes[999_999] == b""


def test_badly_decoded_input_is_refused_as_no_text() -> None:
    with pytest.raises(PromptError, match=r"it holds U\+DCFF"):
        Tokenizer(data()).encode(b"a\xff".decode(errors="surrogateescape"))


def test_byte_level_tokens_spell_the_bytes_that_decoding_gives() -> None:
    tokenizer = Tokenizer(data())
    assert tokenizer.is_byte_level
    spelled = b"".join(tokenizer.token_bytes[i] for i in tokenizer.encode(MANY_SCRIPTS + "</s>"))
    assert spelled.decode() == MANY_SCRIPTS
    assert {tokenizer.token_bytes[i] for i in range(256)} == {bytes([byte]) for byte in range(256)}


def test_a_vocabulary_with_word_marks_is_not_byte_level() -> None:
    fast = byte_level()
    fast.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    assert not Tokenizer(data(fast)).is_byte_level


def test_chat_text_is_encoded_without_a_second_start_token() -> None:
    template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    tokenizer = Tokenizer(data(chat_template=template, add_bos=True))
    assert tokenizer.encode_chat([{"role": "user", "content": "a"}])[::2] == [256, 257]


def test_chat_without_a_template_says_how_to_go_on() -> None:
    with pytest.raises(ChatTemplateError, match=r"has no chat template.*--raw"):
        Tokenizer(data()).encode_chat([{"role": "user", "content": "a"}])


@pytest.mark.parametrize("text", ["", "{}", '{"model": {"type": "Nonsense"}}', "\x00"])
def test_a_description_that_is_no_tokenizer_gives_one_line(text: str) -> None:
    with pytest.raises(TokenizerError, match="the checkpoint's tokenizer cannot be read") as caught:
        Tokenizer(Data(text))
    assert "\n" not in str(caught.value)


CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": MANY_SCRIPTS},
        {"role": "assistant", "content": "Yes.\n"},
        {"role": "user", "content": "<|im_end|> literally?"},
    ],
]


def test_smollm2_equals_transformers_in_ids_text_and_chat_template() -> None:
    from transformers import AutoTokenizer

    checkpoint = open_checkpoint().checkpoint
    assert checkpoint.tokenizer is not None
    ours = Tokenizer(checkpoint.tokenizer)
    theirs = AutoTokenizer.from_pretrained(str(checkpoint.path.parent), gguf_file=checkpoint.path.name)
    for text in [
        MANY_SCRIPTS,
        "It's 12345 o'clock, isn't it?",
        "    def f(x):\n\treturn x**2  # ok\n\n\n",
        " ",
    ]:
        assert ours.encode(text) == theirs(text)["input_ids"], text
        assert ours.decode(ours.encode(text)) == text
    for chat in CHATS:
        rendered = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert ours.render_chat(chat) == rendered
        assert ours.encode_chat(chat) == theirs(rendered, add_special_tokens=False)["input_ids"]


def test_smollm2_is_served_by_the_byte_level_path() -> None:
    checkpoint = open_checkpoint().checkpoint
    assert checkpoint.tokenizer is not None
    assert json.loads(checkpoint.tokenizer.json)["decoder"]["type"] == "ByteLevel"
    assert Tokenizer(checkpoint.tokenizer).is_byte_level
