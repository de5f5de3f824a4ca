"""Every level and graph mode on one checkpoint: are the answers the same, and what does a step take?

    python benchmarks/bench_graph_modes.py MODEL.gguf --device cuda --markdown FILE

Runs the committed prompts (`packages/atom-runner/tests/data/smollm2_greedy.json`), compares the greedy ids
with those transformers gave in float32 on a CPU, replays every recorded bucket against eager, and times
decode steps: 20 requests at once, and one alone. A step is timed by the host, from its inputs to its tokens.
It answers whether modes agree; how fast a step can be is another benchmark's question.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from atom.config import CompilationConfig, CompilationLevel, Config, CUDAGraphMode, KVCacheConfig, ModelConfig
from atom.runner import LLMEngine, SamplingParams
from atom.runner.verify import verify_buckets

ROWS = json.loads(
    (Path(__file__).parent.parent / "packages/atom-runner/tests/data/smollm2_greedy.json").read_text("utf-8")
)["rows"]
PROMPTS = [row["prompt_token_ids"] for row in ROWS]
EXPECTED = [row["token_ids"] for row in ROWS]
HEAD = (
    "| level | mode | start s | ms a step, 20 requests | ms a step, 1 request | equal answers "
    "| decode replayed | worst difference of a bucket |\n|---|---|---|---|---|---|---|---|"
)


def decode_ms(engine: LLMEngine, prompts: list[list[int]], wish: SamplingParams) -> float:
    engine.reset_stats()
    engine.generate(prompts, wish)
    decode = engine.stats().decode
    return 1e3 * decode.seconds / decode.steps


def row(model: str, device: str, level: CompilationLevel, mode: CUDAGraphMode) -> str:
    started = time.perf_counter()
    engine = LLMEngine(
        Config(
            model,
            model_config=ModelConfig(device=device, dtype="float32", max_model_len=512),
            kv_cache_config=KVCacheConfig(num_kv_blocks=800),
            compilation_config=CompilationConfig(
                level=level, cudagraph_mode=mode, cudagraph_capture_sizes=[1, 2, 4, 8, 16, 20]
            ),
            max_num_seqs=20,
        )
    )
    start_s = time.perf_counter() - started
    answers = [output.token_ids for output in engine.generate(PROMPTS, SamplingParams(max_tokens=64))]
    equal = sum(answer == expected for answer, expected in zip(answers, EXPECTED, strict=True))
    many = decode_ms(engine, PROMPTS, SamplingParams(max_tokens=64))
    kinds = {replay.kind for replay in engine.stats().replays if replay.phase == "decode"}
    one = decode_ms(engine, PROMPTS[:1], SamplingParams(max_tokens=64, ignore_eos=True))
    checks = list(verify_buckets(engine.runner, engine.scheduler.blocks))
    worst = f"{max(check.worst for check in checks):g} ({len(checks)} buckets)" if checks else ""
    cells = [
        f"{level.value}",
        mode.name,
        f"{start_s:.2f}",
        f"{many:.2f}",
        f"{one:.2f}",
        f"{equal} of {len(EXPECTED)}",
        ", ".join(sorted(kinds)),
        worst,
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="path of the SmolLM2-135M-Instruct GGUF file")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--markdown", type=Path, help="also write the table there")
    options = parser.parse_args()
    lines = [HEAD]
    print(HEAD, flush=True)
    for level in CompilationLevel:
        for mode in CUDAGraphMode:
            lines.append(row(options.model, options.device, level, mode))
            print(lines[-1], flush=True)
    if options.device == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    if options.markdown is not None:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
