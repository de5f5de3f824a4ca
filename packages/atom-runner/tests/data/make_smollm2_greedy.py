"""Writes smollm2_greedy.json: what transformers answers, greedily and one request at a time, in float32.

Run it again after changing the prompts ; it takes minutes:
`python packages/atom-runner/tests/data/make_smollm2_greedy.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from atom.runner.loader import default_checkpoint

NUM_TOKENS = 64
CHATS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain in one sentence why the sky is blue.",
    "What is 17 times 23? Show your work.",
    "Translate to German: 'The weather is nice today.'",
    "List three prime numbers above 50.",
    "Write a Python function that reverses a string.",
    "Who wrote 'Pride and Prejudice', and when?",
    "Summarise: " + "The quick brown fox jumps over the lazy dog while the farmer sleeps. " * 12,
]
TEXTS = [
    "Once upon a time",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics are",
    "1, 1, 2, 3, 5, 8,",
    "El perro corrió hacia",
    "日本の首都は",
    '{"name": "Alice", "age": 30, "city":',
    "Q: What do bees make?\nA:",
    "🙂🙃 Emoji are",
    "a",
    "In 1969, " + "the crew of Apollo 11 prepared for launch, and " * 20,
]


def load_model(path: Path) -> torch.nn.Module:
    """As `from_pretrained(gguf_file=...)`, which wants a package only needed to spread a model."""
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert set(missing) <= {"lm_head.weight"}, missing
    assert not unexpected, unexpected
    model.tie_weights()
    return model


def main() -> None:
    torch.manual_seed(0)
    path = default_checkpoint()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = load_model(path)
    rows = []
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": chat}], add_generation_prompt=True, return_dict=False
        )
        for chat in CHATS
    ]
    prompts += [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS]
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            answer = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NUM_TOKENS,
                do_sample=False,
                repetition_penalty=1.0,
                pad_token_id=0,
            )
        rows.append({"prompt_token_ids": prompt, "token_ids": answer[0, len(prompt) :].tolist()})
        print(len(rows), len(prompt), len(rows[-1]["token_ids"]), flush=True)
    out = Path(__file__).with_name("smollm2_greedy.json")
    head = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "max_new_tokens": NUM_TOKENS,
    }
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    out.write_text(json.dumps(head)[:-1] + ', "rows": [\n' + lines + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
