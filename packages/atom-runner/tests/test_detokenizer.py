from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from atom.runner.detokenizer import Detokenizer
from atom.runner.tokenizer import Tokenizer


@dataclass
class Data:
    json: str
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = "</s>"
    special_tokens: dict[str, str] = field(default_factory=dict)
    add_bos: bool = False


def byte_level() -> Tokenizer:
    """Ids 0 to 255 are the bytes, in the order of their letters; 256 is special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(["</s>"])
    return Tokenizer(Data(fast.to_str()))


def word_marks() -> Tokenizer:
    """Words with a mark for the space before them, and bytes for all else, as SentencePiece writes them."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁Paris", "▁is", "▁", "a", "."]
    fast = tokenizers.Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True))
    fast.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    fast.add_special_tokens(["</s>"])
    return Tokenizer(Data(fast.to_str()))


BYTES, WORDS = byte_level(), word_marks()


def word(text: str) -> int:
    found = WORDS.token_id(text)
    assert found is not None
    return found


def ids_of(raw: bytes) -> list[int]:
    spelled = {BYTES.token_bytes[i]: i for i in range(256)}
    return [spelled[bytes([byte])] for byte in raw]


def deltas(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [detokenizer.push(token_id) for token_id in ids] + [detokenizer.finish()]


def test_a_character_appears_with_the_last_of_its_bytes() -> None:
    assert deltas(Detokenizer(BYTES), ids_of("a😀é".encode())) == ["a", "", "", "", "😀", "", "é", ""]


def test_an_unfinished_character_comes_out_as_a_replacement_at_the_end() -> None:
    assert deltas(Detokenizer(BYTES), ids_of("a€".encode()[:-1])) == [
        "a",
        "",
        "",
        "\N{REPLACEMENT CHARACTER}",
    ]


@given(st.lists(st.integers(0, 256), max_size=40))
def test_the_joined_deltas_are_the_decoded_text_whatever_the_bytes(ids: list[int]) -> None:
    detokenizer = Detokenizer(BYTES)
    assert "".join(deltas(detokenizer, ids)) == BYTES.decode(ids) == detokenizer.text


@given(st.text(max_size=40))
def test_text_in_word_marks_and_bytes_comes_out_whole(text: str) -> None:
    ids = [1 + byte for byte in f"a{text}".encode()]
    assert "".join(deltas(Detokenizer(WORDS), ids)) == "a" + text


def test_word_marks_show_no_half_characters() -> None:
    ids = [1 + byte for byte in "é€".encode()]
    assert deltas(Detokenizer(WORDS), ids) == ["", "é", "", "", "€", ""]


def test_the_first_word_keeps_its_space_when_it_follows_a_prompt() -> None:
    ids = [word("▁Paris"), word("▁is")]
    assert deltas(Detokenizer(WORDS), ids) == ["Paris", " is", ""]
    assert deltas(Detokenizer(WORDS, prompt_token_ids=ids), ids) == [" Paris", " is", ""]


def test_a_prompt_whose_last_tokens_start_inside_a_character_spoils_nothing() -> None:
    euros = [1 + byte for byte in ("€" * 8).encode()]
    for prompt in (euros, [word("a"), *euros], euros[1:]):
        detokenizer = Detokenizer(WORDS, prompt_token_ids=prompt)
        assert deltas(detokenizer, [1 + byte for byte in "é.".encode()]) == ["", "é", ".", ""]


def test_a_long_answer_in_word_marks_equals_its_decoded_text() -> None:
    vocabulary = [word(text) for text in ("▁Paris", "▁is", "a", ".", "▁")]
    ids = [vocabulary[(i * i) % 5] for i in range(400)]
    assert "".join(deltas(Detokenizer(WORDS), ids)) == WORDS.decode(ids)


def test_special_tokens_show_nothing() -> None:
    assert deltas(Detokenizer(BYTES), [*ids_of(b"a"), 256, *ids_of(b"b")]) == ["a", "", "b", ""]


def test_a_stop_string_over_several_tokens_ends_the_text_before_it() -> None:
    detokenizer = Detokenizer(BYTES, stop=["END"])
    assert deltas(detokenizer, ids_of(b"a ENTENDx")) == ["a", " ", "", "", "ENT", "", "", "", "", ""]
    assert (detokenizer.text, detokenizer.stopped_by) == ("a ENT", "END")


def test_what_only_began_like_a_stop_string_is_handed_out_at_the_end() -> None:
    detokenizer = Detokenizer(BYTES, stop=["END"])
    assert deltas(detokenizer, ids_of(b"xEN")) == ["x", "", "", "EN"]
    assert detokenizer.stopped_by is None


def test_the_stop_string_that_starts_first_wins() -> None:
    detokenizer = Detokenizer(BYTES, stop=["cd", "bcx", "bc"])
    assert "".join(deltas(detokenizer, ids_of(b"abcd"))) == "a"
    assert detokenizer.stopped_by == "bc"


def test_a_stop_string_may_hold_characters_of_several_bytes() -> None:
    detokenizer = Detokenizer(BYTES, stop=["é。"])
    assert "".join(deltas(detokenizer, ids_of("né é。x".encode()))) == "né "
    assert detokenizer.stopped_by == "é。"


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_stop_strings_cut_where_a_search_in_the_whole_text_would(text: str, stop: list[str]) -> None:
    detokenizer = Detokenizer(BYTES, stop=stop)
    shown = "".join(deltas(detokenizer, ids_of(text.encode())))
    ends = [text.find(s) + len(s) for s in stop if s in text]
    if not ends:
        assert (shown, detokenizer.stopped_by) == (text, None)
        return
    # Byte by byte the stop string that is complete first ends the text; it starts where the text then ends.
    assert detokenizer.stopped_by in stop
    assert (shown + str(detokenizer.stopped_by))[: min(ends)] == text[: min(ends)]
    assert len(shown) + len(str(detokenizer.stopped_by)) == min(ends)


@pytest.mark.parametrize("stop", [[], [""]])
def test_no_stop_string_never_stops(stop: list[str]) -> None:
    detokenizer = Detokenizer(BYTES, stop=stop)
    assert "".join(deltas(detokenizer, ids_of(b"abc"))) == "abc"
    assert detokenizer.stopped_by is None
