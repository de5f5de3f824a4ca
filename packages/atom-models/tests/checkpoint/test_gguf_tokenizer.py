"""Vocabularies in GGUF files tokenise as the public libraries do."""

from __future__ import annotations

import array
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, pre_tokenizers
from transformers import AutoTokenizer

from atom.models.checkpoint.gguf import open_gguf
from atom.models.checkpoint.gguf_tokenizer import read_gguf_tokenizer
from atom.models.errors import CorruptCheckpointError, UnsupportedCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    import gguf

    from atom.models.checkpoint.tokenizer_data import TokenizerData

TEXTS = {
    "plain": "The quick brown fox jumps over the lazy dog, doesn't it? I'LL say WE'RE done.",
    "numbers": "In 2024 there were 1234567 of them (3.14 or 0x1F), up 12% from $99,999.00!",
    "multi-byte": "naïve café, Straße, Ångström, Привет мир, 東京都に行きました, 안녕하세요, مرحبا بالعالم, "
    "שלום",
    "emoji": "🎉 party 👩‍👩‍👧‍👦 family 🇫🇷🇯🇵 flags 👍🏽 and ♥️ hearts ㊗",
    "combining": "e\u0301 vs é; ﬁ ligature; A\u030a; №5 and ™",
    "code": "def f(x):\n\tif x > 1:\n        return [i**2 for i in range(x)]  # squares\n\n\nprint(f(3))\n",
    "spaces": "a  b   c    d\t\te \u00a0 f\u3000g" + " " * 40 + "h" + "\n" * 9 + "i \n \n j",
    "edges": "   leading and trailing   ",
    "controls": "nul \x00 bell \x07 escape \x1b[0m byte-order \ufeff mark",
    "special": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<|endoftext|> <|not_special|>",
    "empty": "",
}


def tokenizer_of(path: Path) -> tuple[TokenizerData, tokenizers.Tokenizer]:
    data = open_gguf(path).tokenizer
    assert data is not None
    return data, tokenizers.Tokenizer.from_str(data.json)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> tuple[TokenizerData, tokenizers.Tokenizer, Any]:
    data, own = tokenizer_of(smollm2_path)
    return data, own, AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_smollm2_ids_and_text_equal_transformers(text: str, smollm2: Any) -> None:
    _, own, public = smollm2
    ids = own.encode(text).ids
    assert ids == public(text)["input_ids"]
    assert own.decode(ids) == public.decode(ids, skip_special_tokens=True)
    assert own.decode(ids, skip_special_tokens=False) == text


def test_smollm2_special_tokens_and_template_equal_transformers(smollm2: Any) -> None:
    data, own, public = smollm2
    assert (
        (data.bos_token, data.eos_token)
        == (public.bos_token, public.eos_token)
        == ("<|im_start|>", "<|im_end|>")
    )
    assert data.special_tokens == {"unk_token": public.unk_token, "pad_token": public.pad_token}
    assert data.add_bos is False
    assert data.chat_template == public.chat_template
    assert data.chat_template is not None
    assert own.get_vocab() == public.get_vocab()
    special, public_special = (
        {id_ for id_, token in made.get_added_tokens_decoder().items() if token.special}
        for made in (own, public.backend_tokenizer)
    )
    assert special == public_special == set(range(17))


@pytest.mark.parametrize(
    "text", [*TEXTS.values(), "x =    42", "\n    7 items", "area in m ², ½ of it", "  1. first\n  2. second"]
)
def test_smollm2_cuts_every_digit_out_first_as_its_merges_were_learned(text: str, smollm2: Any) -> None:
    # transformers' GGUF conversion leaves this step out, so a digit after a run of spaces gets other ids
    # there.
    data, own, _ = smollm2
    learned = json.loads(data.json)
    reference = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            learned["model"]["vocab"], [tuple(merge) for merge in learned["model"]["merges"]]
        )
    )
    reference.add_special_tokens([token["content"] for token in learned["added_tokens"]])
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    reference.decoder = decoders.ByteLevel()
    assert own.encode(text).ids == reference.encode(text).ids


SENTENCES = [
    *(text for name, text in TEXTS.items() if name != "special"),
    "HelloWorld camelCase iPhone15 ABCdef",
    "l'été d'Éric",
    "100000 12 1 1234",
    "a/b//c\r\n\r\nd",
]


def learn_byte_level(size: int) -> tuple[list[str], list[str]]:
    """A small byte-level vocabulary, and its merges as GGUF writes them."""
    learned = tokenizers.ByteLevelBPETokenizer()
    learned.train_from_iterator(SENTENCES * 3, vocab_size=size, min_frequency=1, show_progress=False)
    model = json.loads(learned.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tokens, [" ".join(merge) for merge in model["merges"]]


@pytest.fixture
def write_tokenizer(write_gguf: Callable[..., Path]) -> Callable[..., Path]:
    """Writes a file that has a vocabulary and next to no model."""
    fields = {
        "num_hidden_layers": 1,
        "max_position_embeddings": 64,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_theta": 1e4,
        "rms_norm_eps": 1e-5,
    }

    def write(extra: Callable[[gguf.GGUFWriter], None], *, vocab_size: int) -> Path:
        weights = {"model.embed_tokens.weight": torch.zeros(vocab_size, 32)}
        return write_gguf(fields, weights, extra=extra)

    return write


@pytest.mark.parametrize("scheme", ["gpt-2", "llama-bpe", "qwen2", "tekken", None])
def test_byte_level_schemes_equal_transformers(
    scheme: str | None, write_tokenizer: Callable[..., Path]
) -> None:
    tokens, merges = learn_byte_level(600)
    tokens += ["<|start|>", "<|stop|>", "<think>"]

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        if scheme is not None:
            writer.add_tokenizer_pre(scheme)
        writer.add_token_list(tokens)
        writer.add_token_types([1] * (len(tokens) - 3) + [3, 3, 4])
        writer.add_token_merges(merges)
        writer.add_bos_token_id(len(tokens) - 3)
        writer.add_eos_token_id(len(tokens) - 2)
        writer.add_add_bos_token(True)

    path = write_tokenizer(extra, vocab_size=len(tokens))
    data, own = tokenizer_of(path)
    public = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    assert data.add_bos is True
    for text in [*SENTENCES, "<|start|>x<think>y<|stop|>"]:
        expected = public(text)["input_ids"]
        if scheme == "qwen2" and text == TEXTS["combining"]:
            # Qwen composes first; transformers' GGUF conversion leaves that out.
            assert own.encode(text).ids != expected
            continue
        assert own.encode(text).ids == expected, text
        assert own.encode(text, add_special_tokens=False).ids == expected[1:]
    assert {token.content for token in own.get_added_tokens_decoder().values() if not token.special} == {
        "<think>"
    }


def learn_sentencepiece() -> tuple[list[str], list[float], list[int]]:
    """A small SentencePiece vocabulary: unknown, start, end, bytes, then pieces with falling scores."""
    learned = tokenizers.SentencePieceBPETokenizer(add_prefix_space=True)
    learned.train_from_iterator(SENTENCES * 3, vocab_size=500, min_frequency=1, show_progress=False)
    merges = json.loads(learned.to_str())["model"]["merges"]
    pieces = ["".join(merge) for merge in merges]
    characters = sorted({c for text in TEXTS["plain"] + TEXTS["code"] for c in text if c > " "} | {"▁"})
    known = set(characters)
    built = []
    for (left, right), piece in zip(merges, pieces, strict=True):
        if left in known and right in known and piece not in known:
            known.add(piece)
            built.append(piece)
    head = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = head + built + characters
    scores = [0.0] * len(head) + [-float(i) for i in range(len(built))] + [-1e6] * len(characters)
    types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - len(head))
    return tokens, scores, types


@pytest.mark.parametrize("prefix", [True, None])
@pytest.mark.parametrize("add_bos", [True, False, None])
def test_sentencepiece_equals_transformers(
    add_bos: bool | None, prefix: bool | None, write_tokenizer: Callable[..., Path]
) -> None:
    tokens, scores, types = learn_sentencepiece()

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        if add_bos is not None:
            writer.add_add_bos_token(add_bos)
        if prefix is not None:
            writer.add_add_space_prefix(prefix)

    path = write_tokenizer(extra, vocab_size=len(tokens))
    data, own = tokenizer_of(path)
    public = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    assert data.add_bos is (add_bos is not False)
    for text in SENTENCES:
        ids = own.encode(text).ids
        assert own.decode(ids) == text
        # Of a text that begins with a space, transformers' GGUF conversion swallows one.
        if not text.startswith(" "):
            assert ids == public(text)["input_ids"], text
            assert public.decode(ids, skip_special_tokens=True) == text


def test_sentencepiece_marks_every_beginning_as_published_llama_tokenizers_do(
    write_tokenizer: Callable[..., Path],
) -> None:
    from transformers.integrations.gguf import convert_gguf_tokenizer

    tokens, scores, types = learn_sentencepiece()

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(types)
        writer.add_unk_token_id(0)

    _, own = tokenizer_of(write_tokenizer(extra, vocab_size=len(tokens)))
    parts = {"tokenizer_type": "llama", "tokens": tokens, "scores": scores, "token_type": types}
    published, _ = convert_gguf_tokenizer("phi3", parts)
    for text in [*SENTENCES, "<s>The fox</s> jumps"]:
        assert own.encode(text).ids == published.encode(text, add_special_tokens=False).ids, text


def test_without_a_space_prefix_the_text_begins_as_it_is(write_tokenizer: Callable[..., Path]) -> None:
    tokens, scores, types = learn_sentencepiece()

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(types)
        writer.add_add_space_prefix(False)

    _, own = tokenizer_of(write_tokenizer(extra, vocab_size=len(tokens)))
    assert not own.encode("The").tokens[0].startswith("▁")
    assert own.decode(own.encode(" The fox").ids) == " The fox"


def metadata(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.token_type": array.array("i", [1, 1, 1]),
        "tokenizer.ggml.merges": ["a b"],
    }
    base.update({f"tokenizer.{key}": value for key, value in changes.items()})
    return {key: value for key, value in base.items() if value is not None}


def test_start_and_end_tokens_are_put_around_as_the_file_says() -> None:
    data = read_gguf_tokenizer(
        Path("x"),
        metadata(
            **{
                "ggml.bos_token_id": 0,
                "ggml.eos_token_id": 1,
                "ggml.add_bos_token": True,
                "ggml.add_eos_token": True,
            }
        ),
    )
    assert data is not None
    own = tokenizers.Tokenizer.from_str(data.json)
    assert own.encode("ab").ids == [0, 0, 1, 1]  # a and b are special now, so they are matched whole
    assert own.encode("").ids == [0, 1]


def test_a_file_without_a_vocabulary_has_no_tokenizer() -> None:
    assert read_gguf_tokenizer(Path("x"), {}) is None
    assert read_gguf_tokenizer(Path("x"), {"tokenizer.ggml.model": "none"}) is None


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"ggml.model": "bert"},
            UnsupportedCheckpointError,
            "tokenizer.ggml.model is 'bert'; supported are 'gpt2'",
        ),
        (
            {"ggml.pre": "martian"},
            UnsupportedCheckpointError,
            "tokenizer.ggml.pre is 'martian'; supported are default",
        ),
        ({"ggml.tokens": None}, CorruptCheckpointError, "tokens is empty or missing"),
        ({"ggml.tokens": "abc"}, CorruptCheckpointError, "tokens is no list of texts"),
        (
            {"ggml.token_type": array.array("i", [1])},
            CorruptCheckpointError,
            "token_type is no list of 3 numbers",
        ),
        (
            {"ggml.merges": ["a c"]},
            CorruptCheckpointError,
            "merge 0, 'a c', names a token that is not in the vocabulary",
        ),
        ({"ggml.merges": ["ab"]}, CorruptCheckpointError, "merge 0, 'ab'"),
        ({"ggml.bos_token_id": 3}, CorruptCheckpointError, "bos_token_id is 3, expected an id below 3"),
        ({"ggml.eos_token_id": True}, CorruptCheckpointError, "eos_token_id is True"),
        ({"ggml.add_bos_token": 1}, CorruptCheckpointError, "add_bos_token is 1, expected a truth value"),
        ({"chat_template": 7}, CorruptCheckpointError, "chat_template is 7, expected text"),
        (
            {"ggml.model": "llama", "ggml.merges": None, "ggml.scores": 1.0},
            CorruptCheckpointError,
            "scores is no list",
        ),
    ],
)
def test_lists_that_do_not_fit_together_are_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"some.gguf: .*{message}"):
        read_gguf_tokenizer(Path("some.gguf"), metadata(**changes))


def test_of_a_text_listed_twice_the_last_id_counts() -> None:
    data = read_gguf_tokenizer(
        Path("x"),
        metadata(
            **{
                "ggml.tokens": ["a", "<x>", "<x>"],
                "ggml.token_type": array.array("i", [1, 3, 3]),
                "ggml.merges": [],
            }
        ),
    )
    assert data is not None
    assert tokenizers.Tokenizer.from_str(data.json).encode("a<x>").ids == [0, 2]
