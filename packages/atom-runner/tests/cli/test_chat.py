"""`atom-runner chat` over a pipe, on the real checkpoint."""

from __future__ import annotations

import json
from typing import Any

import pytest

QUICK = ("--num-kv-blocks", "64", "--max-num-seqs", "1", "--max-tokens", "12", "--device", "cpu")
CONVERSATION = """What is the capital of France?

And of Italy?
/reset
/nonsense
/help
/stats
What is the capital of France?
/exit
this is never read
"""


@pytest.mark.slow
def test_a_conversation_over_a_pipe(cli: Any, follows_documentation: Any) -> None:
    result = cli("chat", "--json", "--system", "You are a helpful AI assistant.", *QUICK, stdin=CONVERSATION)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    for row in rows:
        follows_documentation("generate", row)
    assert [row["index"] for row in rows] == [0, 1, 2]
    first, second, third = rows
    assert "Paris" in first["text"]
    assert first["prompt"].startswith("<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n")
    history = first["prompt"] + first["text"] + "<|im_end|>\n<|im_start|>user\nAnd of Italy?"
    assert second["prompt"].startswith(history)
    assert (third["prompt"], third["token_ids"]) == (first["prompt"], first["token_ids"])
    assert result.returncode == 2
    assert "atom-runner: error: no command /nonsense; /help lists them" in result.stderr
    assert "/reset   forget the conversation" in result.stderr
    assert "graph mode" in result.stderr


@pytest.mark.slow
def test_answers_are_all_that_is_written_and_a_long_conversation_says_so(cli: Any) -> None:
    questions = "Say hi.\n" + "What is the capital of France? " * 40 + "\nSay hi.\n"
    result = cli("chat", "--max-model-len", "128", *QUICK, stdin=questions)
    assert result.returncode == 2
    first, second = result.stdout.splitlines()[0], result.stdout.splitlines()[-1]
    assert first
    assert second
    assert "turn 1: the prompt has " in result.stderr
    assert "/reset forgets the conversation" in result.stderr
    assert result.stderr.count("\n") == 1
