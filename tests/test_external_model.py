"""The example of a model package of one's own: built, installed beside the others, and run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

PACKAGE = Path(__file__).parent.parent / "examples" / "external_model"
PROMPTS = [list(range(3, 30)), [7], [90, 4, 61]]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the built package, to be put on Python's path."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("needs uv to build the package")
    folder = tmp_path_factory.mktemp("external")
    run(uv, "build", "--quiet", "--wheel", str(PACKAGE), "--out-dir", str(folder / "dist"))
    (wheel,) = (folder / "dist").glob("*.whl")
    run(uv, "pip", "install", "--quiet", "--no-deps", "--target", str(folder / "site"), str(wheel))
    return folder / "site"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A tiny random StableLM as transformers saves it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.StableLmConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=160,
        max_position_embeddings=128,
    )
    model = transformers.StableLmForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.3)
    folder = tmp_path_factory.mktemp("stablelm")
    model.save_pretrained(folder)
    return folder, model


def test_it_is_small() -> None:
    lines = [line for file in PACKAGE.rglob("*.py") for line in file.read_text().splitlines()]
    assert len(lines) < 200


def test_the_runner_lists_it(installed: Path) -> None:
    listed = run(sys.executable, "-m", "atom.runner.cli.app", "models", "--json", PYTHONPATH=str(installed))
    rows = {row["architecture"]: row for row in map(json.loads, listed.stdout.splitlines())}
    assert (rows["StableLmForCausalLM"]["package"], rows["StableLmForCausalLM"]["version"]) == (
        "stablelm-for-atom",
        "0.1.0",
    )
    assert rows["LlamaForCausalLM"]["package"] == "atom-models"


@pytest.mark.parametrize("mode", ["none", "tr_hybrid", "full"])
def test_the_runner_gives_transformers_own_answers(
    installed: Path, saved: Any, tmp_path: Path, mode: str
) -> None:
    folder, reference = saved
    prompts = tmp_path / "in.jsonl"
    prompts.write_text("".join(json.dumps({"prompt_token_ids": ids}) + "\n" for ids in PROMPTS))
    command = [sys.executable, "-m", "atom.runner.cli.app", "generate", "--model", str(folder), "--json"]
    command += [
        "--prompts-file",
        str(prompts),
        "--max-tokens",
        "10",
        "--ignore-eos",
        "--cudagraph-mode",
        mode,
    ]
    command += ["--max-num-seqs", "4", "--num-kv-blocks", "32", "--device", "cpu", "--dtype", "float32"]
    answered = run(*command, PYTHONPATH=str(installed))
    for ids, line in zip(PROMPTS, answered.stdout.splitlines(), strict=True):
        wanted = list(ids)
        for _ in range(10):
            with torch.inference_mode():
                wanted.append(int(reference(torch.tensor([wanted])).logits[0, -1].argmax()))
        assert json.loads(line)["token_ids"] == wanted[len(ids) :]


def test_other_checkpoints_still_go_to_their_own_package(installed: Path) -> None:
    program = "from atom.runner.loader import open_checkpoint; print(open_checkpoint().provider.name)"
    assert run(sys.executable, "-c", program, PYTHONPATH=str(installed)).stdout.strip() == "atom-models"
