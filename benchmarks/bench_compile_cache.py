"""What does the compile cache save: cold start, warm start, and compiling every piece by itself?

Each start is a process of its own that makes the model, then times its first call (trace, compile or load,
run). Cold starts have an empty compile cache and empty Inductor folders; warm starts find both as the cold
start left them. "every piece" shares nothing between equal pieces, neither here nor inside of Inductor.
Contenders take turns:

    uv run python benchmarks/bench_compile_cache.py --model smollm2 --repeat 3
    uv run python benchmarks/bench_compile_cache.py --device cuda    # SmolLM2's shape, random weights

prints medians, ratios and counts; `--out PATH` writes them as a report.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

STARTS = ("cold", "warm", "every piece")
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCAB = 30, 576, 9, 3, 64, 1536, 49152


def toy_model(config: Any, device: Any) -> Any:
    """A decoder of SmolLM2's shape with random weights and an attention op that only writes zeros."""
    from atom.compile import direct_register_custom_op, support_torch_compile

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, layer_id: int) -> None:
        out.zero_()

    direct_register_custom_op("bench_attend", attend, ["out"])

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(HIDDEN))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = x.float()
            return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight

    class Layer(nn.Module):
        def __init__(self, layer_id: int) -> None:
            super().__init__()
            self.layer_id = layer_id
            self.before, self.after = Norm(), Norm()
            self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
            self.out = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
            self.gate_up = nn.Linear(HIDDEN, 2 * INTERMEDIATE, bias=False)
            self.down = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

        def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            heads = self.qkv(self.before(x)).view(-1, HEADS + 2 * KV_HEADS, HEAD_DIM)
            first, second = heads[:, :-KV_HEADS].chunk(2, -1)
            turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
            q, k, v = turned[:, :HEADS], turned[:, HEADS:], heads[:, -KV_HEADS:]
            attended = torch.empty_like(q)
            torch.ops.aiter.bench_attend(q, k, v, attended, self.layer_id)
            x = x + self.out(attended.reshape(-1, HEADS * HEAD_DIM))
            gate, up = self.gate_up(self.after(x)).chunk(2, -1)
            return x + self.down(nn.functional.silu(gate) * up)

    @support_torch_compile
    class Toy(nn.Module):
        def __init__(self, *, atom_config: Any, prefix: str = "") -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCAB, HIDDEN)
            self.layers = nn.ModuleList(Layer(i) for i in range(LAYERS))
            self.norm = Norm()
            self.register_buffer("angles", torch.randn(2048, HEAD_DIM // 2))

        def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            angles = self.angles[positions].unsqueeze(1)
            x, cos, sin = self.embed(ids), angles.cos(), angles.sin()
            for layer in self.layers:
                x = layer(x, cos, sin)
            return self.norm(x)

    return Toy(atom_config=config).to(device)


def start(arguments: argparse.Namespace) -> dict[str, Any]:
    """One process: make the model, time its first call."""
    from atom.compile import compilation_counter, compile_monitor
    from atom.config import CompilationConfig, Config

    splitting_ops = ["aiter.bench_attend"] if arguments.model == "toy" else None
    every_piece = arguments.start == "every piece"
    compilation = CompilationConfig(
        level=3,
        cache_dir=arguments.cache,
        disable_compile_cache=every_piece,
        splitting_ops=splitting_ops,
        cudagraph_mode="NONE",
    )
    if every_piece:
        share_nothing()
    device = torch.device(arguments.device)
    if arguments.model == "toy":
        model = toy_model(Config("toy", compilation_config=compilation), device)
    else:
        from atom.models.registry import provider
        from atom.runner.loader import default_checkpoint

        path = default_checkpoint() if arguments.model == "smollm2" else Path(arguments.model)
        config = Config(str(path), compilation_config=compilation)
        checkpoint = provider.open(path)
        model = provider.build(checkpoint, config, device=device, dtype=torch.float32)  # type: ignore[arg-type]
    ids = torch.arange(arguments.rows, device=device)
    with torch.inference_mode():
        started = time.perf_counter()
        model(ids, ids)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    counter = compilation_counter
    return {
        "seconds": seconds,
        "trace": compile_monitor.seconds["trace"] - compile_monitor.seconds["backend"],
        "backend": compile_monitor.seconds["backend"],
        "pieces": counter.num_pieces,
        "compiled": counter.num_backend_compilations,
        "loaded": counter.num_cache_hits,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or "CPU",
    }


def share_nothing() -> None:
    """Compile each piece as if it were the only one: no piece in use, no entry of Inductor's caches."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache, PyCodeCache

    from atom.compile import CompilerManager, InductorStandaloneAdaptor

    compile_one = InductorStandaloneAdaptor.compile

    def alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        CppPythonBindingsCodeCache.cache_clear()
        PyCodeCache.cache_clear()
        self._folder = Path(tempfile.mkdtemp(dir=self._folder))
        return compile_one(self, *args, **kwargs)

    CompilerManager._load = lambda self, request: None  # type: ignore[method-assign]
    InductorStandaloneAdaptor.compile = alone  # type: ignore[method-assign]


def run(arguments: argparse.Namespace, name: str, folder: Path) -> dict[str, Any]:
    environment = os.environ | {"TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    command = [sys.executable, __file__, "--start", name, "--cache", str(folder / "cache")]
    command += ["--model", arguments.model, "--device", arguments.device, "--rows", str(arguments.rows)]
    process = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def report(arguments: argparse.Namespace, results: dict[str, list[dict[str, Any]]]) -> str:
    first = results["cold"][0]
    load = os.getloadavg()[0]
    lines = [
        f"{arguments.model} on {first['device']} ({platform.machine()}), torch {first['torch']}, Python "
        f"{platform.python_version()}, {arguments.rows} rows, {arguments.repeat} starts each, "
        f"load average {load:.1f}",
        "",
        "| start | first call, s, median | fastest to slowest | trace, s | compile or load, s | pieces | "
        "compiled | read |",
        "|---|---|---|---|---|---|---|---|",
    ]
    medians = {}
    for name, starts in results.items():
        times = sorted(one["seconds"] for one in starts)
        medians[name] = statistics.median(times)
        trace, backend = (statistics.median(one[part] for one in starts) for part in ("trace", "backend"))
        last = starts[-1]
        lines.append(
            f"| {name} | {medians[name]:.2f} | {times[0]:.2f} to {times[-1]:.2f} | {trace:.2f} | "
            f"{backend:.2f} | {last['pieces']} | {last['compiled']} | {last['loaded']} |"
        )
    backends = {name: statistics.median(one["backend"] for one in starts) for name, starts in results.items()}
    lines += [
        "",
        f"cold / warm: {medians['cold'] / medians['warm']:.1f} (compile or load alone: "
        f"{backends['cold'] / backends['warm']:.1f}); every piece / cold: "
        f"{medians['every piece'] / medians['cold']:.1f} (compile alone: "
        f"{backends['every piece'] / backends['cold']:.1f})",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="toy", help="toy, smollm2 or the path of a checkpoint")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=64, help="rows of the first call")
    parser.add_argument("--repeat", type=int, default=1, help="starts of each kind")
    parser.add_argument("--out", type=Path, help="write the report here as well")
    parser.add_argument("--start", choices=STARTS, help=argparse.SUPPRESS)
    parser.add_argument("--cache", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.start:
        print(json.dumps(start(arguments)))
        return
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in STARTS}
    for _ in range(arguments.repeat):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
            for name in STARTS:
                place = Path(other if name == "every piece" else folder)
                results[name].append(run(arguments, name, place))
                print(name, results[name][-1], file=sys.stderr)
    text = report(arguments, results)
    print(text)
    if arguments.out:
        arguments.out.write_text(f"# Compile cache\n\n```text\n{' '.join(sys.argv)}\n```\n\n{text}\n")


if __name__ == "__main__":
    main()
