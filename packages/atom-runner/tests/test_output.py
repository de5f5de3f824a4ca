"""Text of an answer: stop strings, held-back characters, cut-offs."""

from __future__ import annotations

import json

import pytest

from atom.runner import SamplingParams
from atom.runner.detokenizer import Detokenizer
from atom.runner.output import Answer
from atom.runner.request import Request
from atom.runner.tokenizer import Tokenizer
from atom.runner.tokenizer_file import GivenTokenizer

LETTERS = "abcdefgh "


@pytest.fixture(scope="module")
def tokenizer():
    vocab = {letter if letter != " " else "\u0120": i for i, letter in enumerate(LETTERS)}
    vocab |= {"\u00c3": 20, "\u00a9": 21}  # the two bytes of é
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    return Tokenizer(GivenTokenizer(json.dumps(description)))


def answer_of(tokenizer, max_tokens=10, stop=(), stop_token_ids=()):
    request = Request(
        request_id="r",
        index=3,
        token_ids=[0, 1],
        num_prompt=2,
        params=SamplingParams(max_tokens=max_tokens, stop=stop),
        seed=0,
        stop_token_ids=frozenset(stop_token_ids),
        max_total=2 + max_tokens,
        cut_off="the reason",
    )
    detokenizer = Detokenizer(tokenizer, prompt_token_ids=request.token_ids, stop=stop) if tokenizer else None
    return Answer(request, prompt="ab", detokenizer=detokenizer)


def run(answer, token_ids):
    outputs = []
    for token_id in token_ids:
        answer.request.append(token_id)
        outputs.append(answer.output(num_new=1, delta=answer.spell()))
        if answer.request.finished:
            break
    return outputs


def test_deltas_join_to_the_text(tokenizer):
    outputs = run(answer_of(tokenizer, max_tokens=4), [2, 3, 8, 4])
    assert [output.delta for output in outputs] == ["c", "d", " ", "e"]
    assert [output.text for output in outputs] == ["c", "cd", "cd ", "cd e"]
    assert (outputs[-1].finish_reason, outputs[-1].index, outputs[-1].prompt) == ("length", 3, "ab")


def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(tokenizer):
    outputs = run(answer_of(tokenizer, stop=("de",)), [2, 3, 4, 5])
    assert [output.delta for output in outputs] == ["c", "", ""]
    assert (outputs[-1].text, outputs[-1].token_ids, outputs[-1].finish_reason) == ("c", [2, 3, 4], "stop")


def test_a_stop_string_at_the_limit_counts_as_stop(tokenizer):
    assert run(answer_of(tokenizer, max_tokens=2, stop=("cd",)), [2, 3])[-1].finish_reason == "stop"


def test_what_was_held_back_comes_with_the_end(tokenizer):
    outputs = run(answer_of(tokenizer, max_tokens=2, stop=("dx",)), [2, 3])
    assert [output.delta for output in outputs] == ["c", "d"]


def test_a_stop_token_is_a_token_of_the_answer_and_not_of_its_text(tokenizer):
    [first, last] = run(answer_of(tokenizer, stop_token_ids=(3,)), [2, 3])
    assert (last.token_ids, last.text, last.finish_reason) == ([2, 3], "c", "stop")
    assert not first.finished


def test_half_a_character_waits_for_the_other_half(tokenizer):
    outputs = run(answer_of(tokenizer, max_tokens=3), [20, 21, 20])
    assert [output.delta for output in outputs] == ["", "é", "\N{REPLACEMENT CHARACTER}"]


def test_a_cut_off_says_why_only_where_it_cut(tokenizer):
    assert run(answer_of(tokenizer, max_tokens=1), [2])[-1].detail == "the reason"
    assert run(answer_of(tokenizer, stop_token_ids=(2,)), [2])[-1].detail is None


def test_without_a_tokenizer_there_is_no_text():
    [output] = run(answer_of(None, max_tokens=1), [2])
    assert (output.text, output.delta, output.token_ids) == (None, "", [2])
