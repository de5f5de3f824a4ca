"""`atom-runner generate` on the real checkpoint, in processes of its own."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

QUICK = ("--num-kv-blocks", "64", "--max-num-seqs", "8", "--device", "cpu")
ROWS = [
    b'{"prompt": "What is the capital of France?", "max_tokens": 8}',
    b'{"prompt": ""}',
    b'{"messages": [{"role": "user", "content": "Say hi."}], "temperature": 0.8, "seed": 3}',
    b'{"prompt": "\xff"}',
    b'{"prompt_token_ids": [504, 3575, 282], "max_tokens": 3, "ignore_eos": true}',
    b'{"prompt": "' + b"long " * 300 + b'"}',
    b'{"prompt": "Hi", "max_tokens": 0}',
    b'{"prompt": "Count: 1, 2, 3,", "stop": [","], "max_tokens": 8}',
    b'{"prompt_token_ids": [99999999]}',
]


@pytest.fixture(scope="module")
def bare(cli: Any) -> subprocess.CompletedProcess[str]:
    result: subprocess.CompletedProcess[str] = cli("--device", "cpu")
    return result


@pytest.fixture(scope="module")
def batch(cli: Any) -> subprocess.CompletedProcess[str]:
    result: subprocess.CompletedProcess[str] = cli(
        *("generate", "--json", "--prompts-file", "-", "--max-model-len", "128", "--max-tokens", "6", *QUICK),
        stdin=b"\n".join(ROWS),
    )
    return result


@pytest.mark.slow
def test_the_bare_command_answers_the_built_in_question(bare: subprocess.CompletedProcess[str]) -> None:
    assert bare.returncode == 0, bare.stderr
    assert bare.stdout.startswith("The capital of France is Paris.")
    assert "> What is the capital of France?" in bare.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [
        r"model +SmolLM2-135M-Instruct.Q4_1.gguf \(LlamaForCausalLM, \w+ on cpu\)",
        r"load +\d+\.\d\d s",
        r"prefill +[\d,.]+ tokens/s \(\d+ tokens in 1 step",
        r"decode +[\d,.]+ tokens/s \(\d+ tokens in \d+ steps",
        r"step time +median \d+\.\d\d ms, p99 \d+\.\d\d ms",
        r"level +0 NO_COMPILATION",
        r"graph mode +NONE",
        r"replayed +0 of \d+ steps",
        r"\d+ decode: without a graph \(graph mode NONE\)",
        r"KV cache +\d+ blocks of 16 tokens",
    ],
)
def test_its_table_says_what_the_run_did(row: str, bare: subprocess.CompletedProcess[str]) -> None:
    import re

    assert re.search(row, bare.stderr), bare.stderr


@pytest.mark.slow
def test_in_a_prompts_file_only_the_bad_requests_fail(
    batch: subprocess.CompletedProcess[str], follows_documentation: Any
) -> None:
    assert batch.returncode == 2
    rows = [json.loads(line) for line in batch.stdout.splitlines()]
    assert [row["index"] for row in rows] == list(range(len(ROWS)))
    for row in rows:
        follows_documentation("generate", row)
    errors = {row["index"]: row["error"] for row in rows if row["finish_reason"] == "error"}
    assert sorted(errors) == [1, 3, 5, 6, 8]
    assert errors[1] == "line 2: prompt is empty"
    assert errors[3] == "line 4 is not UTF-8 text: byte 13 is 0xff"
    assert "line 6: the prompt has " in errors[5]
    assert "max_model_len=128" in errors[5]
    assert errors[6] == "line 7: max_tokens=0: must be at least 1 and a whole number"
    assert "99999999" in errors[8]
    assert batch.stderr == ""


@pytest.mark.slow
def test_answers_of_a_batch_are_what_was_asked_for(batch: subprocess.CompletedProcess[str]) -> None:
    rows = [json.loads(line) for line in batch.stdout.splitlines()]
    assert rows[0]["text"].startswith("The capital of France is Paris.")
    assert rows[0]["prompt"].endswith("What is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    assert rows[2]["text"]
    assert len(rows[2]["token_ids"]) <= 6
    assert rows[4]["prompt"] is None
    assert rows[4]["prompt_token_ids"] == [504, 3575, 282]
    assert (len(rows[4]["token_ids"]), rows[4]["finish_reason"]) == (3, "length")
    assert "," not in rows[7]["text"]


@pytest.mark.slow
def test_the_same_command_gives_the_same_tokens_one_prompt_at_a_time(
    cli: Any, batch: subprocess.CompletedProcess[str]
) -> None:
    sampled = cli(
        *("generate", "--json", "--prompts-file", "-", "--max-model-len", "128", "--max-tokens", "6", *QUICK),
        stdin=ROWS[2],
    )
    assert sampled.returncode == 0, sampled.stderr
    assert json.loads(sampled.stdout)["token_ids"] == json.loads(batch.stdout.splitlines()[2])["token_ids"]


@pytest.mark.slow
def test_raw_prompts_are_continued_and_several_answers_stand_in_order(cli: Any) -> None:
    result = cli(
        *(
            "generate",
            "--raw",
            "-p",
            "The capital of France is",
            "-p",
            "2, 4, 6, 8,",
            "--max-tokens",
            "4",
            *QUICK,
        )
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("[0] The capital of France is\n Paris")
    assert "\n\n[1] 2, 4, 6, 8,\n 1" in result.stdout


@pytest.mark.slow
def test_ctrl_c_ends_a_run_with_130_and_nothing_more(start_cli: Any) -> None:
    process = start_cli("generate", "-p", "Count.", "--ignore-eos", "--max-tokens", "4000", "--device", "cpu")
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, b"")


@pytest.mark.slow
def test_a_reader_that_has_enough_ends_a_run_quietly(start_cli: Any) -> None:
    process = start_cli("generate", "-p", "Count.", "--ignore-eos", "--max-tokens", "4000", "--device", "cpu")
    assert process.stdout.read(1)
    process.stdout.close()
    with process.stderr:
        errors = process.stderr.read()
    assert (process.wait(timeout=60), errors) == (141, b"")


@pytest.mark.slow
def test_a_checkpoint_without_a_tokenizer_takes_and_gives_token_ids(
    cli: Any, tiny: Path, follows_documentation: Any
) -> None:
    lines = b'{"prompt_token_ids": [1, 5, 9], "max_tokens": 4, "ignore_eos": true}\n{"prompt": "text"}'
    result = cli(*("generate", "--json", "--model", str(tiny), "--prompts-file", "-", *QUICK), stdin=lines)
    assert result.returncode == 2, result.stderr
    answer, refused = [json.loads(line) for line in result.stdout.splitlines()]
    for row in (answer, refused):
        follows_documentation("generate", row)
    assert answer["text"] is None
    assert len(answer["token_ids"]) == 4
    assert "has no tokenizer" in refused["error"]
