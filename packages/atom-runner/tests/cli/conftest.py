"""Runs of the real command, and the tables in which the documentation promises what `--json` writes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

import pytest

PAGE = Path(__file__).parents[4] / "docs" / "cli.md"
CHECKS: dict[str, Any] = {
    "integer": lambda value: type(value) is int,
    "text": lambda value: isinstance(value, str),
    "null": lambda value: value is None,
    "list of integers or nulls": lambda value: all(v is None or type(v) is int for v in value),
    "list of integers": lambda value: isinstance(value, list) and all(type(v) is int for v in value),
    "list of texts": lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value),
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: type(value) is bool,
    "object": lambda value: isinstance(value, dict),
    "list of objects": lambda value: isinstance(value, list) and all(isinstance(v, dict) for v in value),
}


class Cli(Protocol):
    def __call__(
        self, *arguments: str, stdin: str | bytes = b"", timeout: float = 240
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="session")
def cli() -> Cli:
    """Runs `atom-runner` in a process of its own."""

    def run(
        *arguments: str, stdin: str | bytes = b"", timeout: float = 240
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command(*arguments),
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    return run


@pytest.fixture(scope="session")
def start_cli() -> Any:
    """Starts `atom-runner` with pipes and leaves it running."""

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            # Tests that run in the background ignore the signal, and a child would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return start


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / "atom-runner"), *arguments]


@pytest.fixture(scope="session")
def follows_documentation() -> Any:
    """Checks that an object has exactly the fields, of the types, that the documentation of a verb lists."""

    def check(verb: str, row: dict[str, Any], *, of: str | None = None) -> None:
        promised = documented_fields(verb, of)
        assert promised, f"docs/cli.md has no table for {verb} --json ({of or 'itself'})"
        for name, types in promised.items():
            required = "optional" not in types
            assert name in row or not required, f"{verb} --json lacks {name}"
            if name in row:
                allowed = [kind.strip() for kind in types.replace(", optional", "").split(" or ")]
                assert any(CHECKS[kind](row[name]) for kind in allowed), f"{name}={row[name]!r} is no {types}"
        assert set(row) <= set(promised), f"{verb} --json writes undocumented {set(row) - set(promised)}"

    return check


def documented_fields(verb: str, of: str | None = None) -> dict[str, str]:
    """Field and type of each row of the table under a verb's heading; `of` names a list of objects in it."""
    section = re.search(rf"^### What `{verb} --json` writes\n(.*?)(?=^#|\Z)", PAGE.read_text(), re.M | re.S)
    if section is None:
        return {}
    text, *inner = re.split(r"^Each object in `(\w+)`:$", section.group(1), flags=re.M)
    if of is not None:
        text = dict(zip(inner[::2], inner[1::2], strict=True)).get(of, "")
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", text, re.M))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama saved as a folder that holds no tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
    )
    folder = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
