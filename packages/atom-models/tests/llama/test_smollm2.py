"""SmolLM2-135M-Instruct, the real file: answers are transformers' own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from tokenizers import Tokenizer

from atom.config import Config, ModelConfig
from atom.models.checkpoint import open_checkpoint
from atom.models.llama import LlamaConfig, LlamaForCausalLM

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = [
    CHAT.format("What is the capital of France?"),
    CHAT.format("Write a Python function that adds two numbers."),
    "Once upon a time, in a village by the sea,",
    "1, 1, 2, 3, 5, 8,",
]
TOKENS = 24


@pytest.fixture(scope="module")
def prompts(smollm2_path: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_str(open_checkpoint(smollm2_path).tokenizer.json)
    return [tokenizer.encode(prompt).ids for prompt in PROMPTS]


@pytest.fixture(scope="module")
def reference(smollm2_path: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy ids of transformers' Llama with the file's weights, one prompt at a time."""
    from transformers import LlamaConfig as HfConfig
    from transformers import LlamaForCausalLM as HfLlama

    checkpoint = open_checkpoint(smollm2_path)
    fields = {
        key: checkpoint.config[key] for key in checkpoint.config if key not in ("architectures", "dtype")
    }
    theta = fields.pop("rope_theta")
    fields["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    fields.pop("rope_scaling")
    model = HfLlama(HfConfig(**fields)).eval()
    weights = {name: checkpoint.read(name, torch.float32) for name in checkpoint.tensors}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert missing == ["lm_head.weight"]
    assert not unexpected
    model.tie_weights()
    model.generation_config.eos_token_id = None  # answers of equal length, whatever ends one
    answers = []
    for prompt in prompts:
        with torch.inference_mode():
            ids = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=TOKENS,
                do_sample=False,
                pad_token_id=2,
            )
        answers.append(ids[0, len(prompt) :].tolist())
    return answers


@pytest.mark.parametrize("settings", [{"dtype": "float32"}, {}], ids=["float32", "auto"])
def test_greedy_ids_equal_transformers(smollm2_path, prompts, reference, step_loop, generate, settings):
    checkpoint = open_checkpoint(smollm2_path)
    model = LlamaForCausalLM(
        LlamaConfig.from_hf(checkpoint.config),
        atom_config=Config(str(smollm2_path), model_config=ModelConfig(**settings)),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    model.load_weights(checkpoint)
    loop = step_loop(model, max_len=128, num_seqs=len(prompts), block_size=16)
    assert generate(loop, prompts, TOKENS) == reference
