"""How far is each kernel from the least time its bytes (or its arithmetic) need, and how does torch's own op
do?

    python benchmarks/bench_kernels.py                 # every section, a Markdown table
    python benchmarks/bench_kernels.py decode prefill  # some sections

Times are medians of graph replays between device events, each graph holding one launch per input set; the
sets are rotated through more memory than the device's cache holds. Read bandwidth is a `torch.sum` over 2 GiB
of bf16, the matrix rate a product of 8192-cubed bf16 matrices, both in the same run. Weights and inputs are
random.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
import triton

from atom.models.kernels import PrefillPlan, pack, plan_decode, plan_prefill
from atom.models.kernels.embedding import embedding
from atom.models.kernels.gemv import GemvConfig
from atom.models.kernels.graph_timer import time_in_graph
from atom.models.kernels.launch import Launcher
from atom.models.kernels.linear import TORCH, Choice, LinearChooser, ProductKey, linear, measuring
from atom.models.kernels.paged_decode import paged_decode
from atom.models.kernels.paged_prefill import paged_prefill
from atom.models.kernels.rms_norm import add_rms_norm
from atom.models.kernels.rotary_cache import rotary_and_cache
from atom.models.kernels.sampling import greedy, sample
from atom.models.kernels.silu_mul import _silu_mul_kernel, silu_mul
from atom.models.kernels.work_list import build_work_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BF16 = torch.bfloat16
DEVICE = torch.device("cuda", 0)
# Llama-3-8B: the products of a layer, and the head
PRODUCTS = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "lm_head": (128256, 4096),
}
FUSED = [("gate_up", ("norm", "silu")), ("qkv", ("norm",)), ("o", ("residual",)), ("down", ("residual",))]
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 32, 8, 128, 16
REPEATS = 50
GRAPH_US = 400


@dataclass
class Row:
    """One line of the table; microseconds."""

    kernel: str
    shape: str
    ours: float
    floor: float
    torchs: float | None = None


@dataclass
class Ceilings:
    """Bytes per microsecond read, and floating-point operations per microsecond of a bf16 product."""

    read: float
    matrix: float


def rotated(make: Callable[[], tuple], nbytes: int, limit: int = 24) -> list[tuple]:
    """Input sets that together are three times the device's cache."""
    cache = torch.cuda.get_device_properties(DEVICE).L2_cache_size
    return [make() for _ in range(max(1, min(limit, -(-3 * cache // max(1, nbytes)))))]


def timed(function: Callable[..., object], sets: list[tuple], repeats: int | None = None) -> float:
    """Microseconds of one call, over all input sets."""

    def of_graph(rounds: int) -> float:
        def run() -> None:
            for _ in range(rounds):
                for inputs in sets:
                    function(*inputs)

        return time_in_graph(run, repeats=repeats or REPEATS) * 1000

    once = of_graph(1)
    # starting a graph takes as long as a small kernel: let it run long enough for that not to count
    rounds = min(32, int(GRAPH_US / once) + 1)
    return (once if rounds == 1 else of_graph(rounds)) / (rounds * len(sets))


def measure_ceilings() -> Ceilings:
    big = [torch.randn(2**30, device=DEVICE, dtype=BF16)]
    read = 2**31 / (time_in_graph(lambda: torch.sum(big[0]), repeats=REPEATS) * 1000)
    big.clear()
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=BF16) for _ in range(2))
    matrix = 2 * 8192**3 / (time_in_graph(lambda: torch.mm(a, b), repeats=REPEATS) * 1000)
    return Ceilings(read, matrix)


def randn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=dtype)


def bench_norm(limits: Ceilings) -> Iterator[Row]:
    weight = randn(4096)
    for rows in (1, 32, 8192):
        nbytes = rows * 4096 * 2 * 4
        sets = rotated(lambda r=rows: (randn(r, 4096), randn(r, 4096)), nbytes)
        ours = timed(lambda x, r: add_rms_norm(x, r, weight, 1e-5), sets)
        torchs = timed(lambda x, r: F.rms_norm(x + r, (4096,), weight, 1e-5), sets)
        yield Row("add + RMS norm", f"{rows} x 4096", ours, nbytes / limits.read, torchs)


def bench_elementwise(limits: Ceilings) -> Iterator[Row]:
    for rows in (1, 32, 8192):
        nbytes = rows * 14336 * 2 * 3
        sets = rotated(lambda r=rows: (randn(r, 28672),), nbytes)
        torchs = timed(lambda x: F.silu(x[:, :14336]) * x[:, 14336:], sets)
        yield Row("SiLU-mul", f"{rows} x 14336", timed(silu_mul, sets), nbytes / limits.read, torchs)
    table = randn(128256, 4096)
    for rows in (32, 8192):
        sets = [(torch.randint(0, 128256, (rows,), device=DEVICE),) for _ in range(8)]
        ours = timed(lambda ids: embedding(ids, table), sets)
        torchs = timed(lambda ids: F.embedding(ids, table), sets)
        yield Row("embedding", f"{rows} of 128256 x 4096", ours, rows * 4096 * 4 / limits.read, torchs)


def bench_rotary(limits: Ceilings) -> Iterator[Row]:
    cos_sin = torch.rand(8192, HEAD_DIM, device=DEVICE)
    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM

    def torchs(fused, positions, k_cache, v_cache, slots):
        query, key, value = _split(fused)
        cos, sin = cos_sin[positions][:, None].chunk(2, dim=-1)
        for heads in (query, key):
            a, b = heads.chunk(2, dim=-1)
            heads.copy_(torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1))
        k_cache.flatten(0, 1)[slots] = key
        v_cache.flatten(0, 1)[slots] = value

    def ours(fused, positions, k_cache, v_cache, slots):
        rotary_and_cache(*_split(fused), positions, cos_sin, k_cache, v_cache, slots)

    for rows in (1, 32, 8192):
        blocks = rows // BLOCK + 2
        sets = rotated(
            lambda r=rows, n=blocks: (
                randn(r, width), torch.arange(r, device=DEVICE), randn(n, BLOCK, KV_HEADS, HEAD_DIM),
                randn(n, BLOCK, KV_HEADS, HEAD_DIM), torch.arange(r, device=DEVICE) + BLOCK,
            ),
            rows * width * 4,
        )  # fmt: skip
        nbytes = rows * (2 * (HEADS + KV_HEADS) + 2 * KV_HEADS + KV_HEADS) * HEAD_DIM * 2
        name = f"{rows} rows, {HEADS}/{KV_HEADS} heads of {HEAD_DIM}"
        yield Row("RoPE + KV write", name, timed(ours, sets), nbytes / limits.read, timed(torchs, sets))


def _split(fused: torch.Tensor) -> list[torch.Tensor]:
    sizes = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
    return [part.unflatten(1, (-1, HEAD_DIM)) for part in fused.split(sizes, dim=1)]


def decode_set(seqs: int, context: int, dtype: torch.dtype) -> tuple:
    """query, keys, values, block tables, lengths and output of a decode step over shuffled blocks."""
    width = -(-context // BLOCK)
    keys, values = (randn(seqs * width + 1, BLOCK, KV_HEADS, HEAD_DIM).to(dtype) for _ in range(2))
    order = torch.randperm(seqs * width, device=DEVICE, dtype=torch.int32) + 1
    lengths = torch.full((seqs,), context, device=DEVICE, dtype=torch.int32)
    query = randn(seqs, HEADS, HEAD_DIM)
    return query, keys, values, order.view(seqs, width), lengths, torch.empty_like(query)


def decode_sets(seqs: int, context: int, dtype: torch.dtype) -> list[tuple]:
    nbytes = 2 * seqs * context * KV_HEADS * HEAD_DIM * dtype.itemsize
    return rotated(lambda: decode_set(seqs, context, dtype), nbytes, limit=48)


def bench_decode(limits: Ceilings) -> Iterator[Row]:
    scale = HEAD_DIM**-0.5
    for seqs, context, dtype in [
        (1, 1024, BF16), (8, 1024, BF16), (32, 1024, BF16), (256, 1024, BF16),
        (1, 32768, BF16), (8, 8192, BF16), (32, 1024, torch.float8_e4m3fn),
    ]:  # fmt: skip
        sets = decode_sets(seqs, context, dtype)
        ours = timed(lambda *a: paged_decode(*a, scale=scale), sets)
        floor = 2 * seqs * context * KV_HEADS * HEAD_DIM * dtype.itemsize / limits.read
        torchs = None
        if dtype == BF16:
            shape = (seqs, KV_HEADS, context, HEAD_DIM)
            dense = [(randn(seqs, HEADS, 1, HEAD_DIM), randn(*shape), randn(*shape)) for _ in sets]
            torchs = timed(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), dense)
        name = f"{seqs} x {context}{'' if dtype == BF16 else ' fp8'}"
        yield Row("decode attention", name, ours, floor, torchs)
        del sets


def prefill_step(counts: list[int], cached: int, **changes: int) -> tuple[tuple, PrefillPlan]:
    rows, seqs = sum(counts), len(counts)
    lengths = [count + cached for count in counts]
    width = -(-max(lengths) // BLOCK)
    keys, values = (randn(seqs * width + 1, BLOCK, KV_HEADS, HEAD_DIM) for _ in range(2))
    tables = (torch.randperm(seqs * width, device=DEVICE, dtype=torch.int32) + 1).view(seqs, width)
    plan = plan_prefill(
        rows=rows, max_seqs=seqs, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM,
        max_seqlen_k=width * BLOCK, dtype=BF16,
    )  # fmt: skip
    plan = replace(plan, **changes)
    starts = torch.tensor([0, *itertools.accumulate(counts)], device=DEVICE, dtype=torch.int32)
    work = torch.empty(plan.items, 4, device=DEVICE, dtype=torch.int32)
    build_work_list(starts, torch.tensor(lengths, device=DEVICE, dtype=torch.int32), rows, plan, work)
    query = randn(rows, HEADS, HEAD_DIM)
    return (query, keys, values, tables, work, torch.empty_like(query)), plan


def bench_prefill(limits: Ceilings) -> Iterator[Row]:
    for counts, cached in [([8192], 0), ([2048] * 4, 0), ([2048], 6144), ([512] * 16, 0), ([1] * 8, 1023)]:
        inputs, plan = prefill_step(counts, cached)
        ours = timed(lambda *a, p=plan: paged_prefill(*a, p, scale=0.1), [inputs])
        seen = sum(count * cached + count * (count + 1) / 2 for count in counts)
        floor = max(
            4 * seen * HEADS * HEAD_DIM / limits.matrix,
            2 * sum(count + cached for count in counts) * KV_HEADS * HEAD_DIM * 2 / limits.read,
        )
        torchs = None
        if not cached:
            q, k, v = (randn(len(counts), h, counts[0], HEAD_DIM) for h in (HEADS, KV_HEADS, KV_HEADS))
            torchs = timed(
                lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
                [(q, k, v)],
            )
        prefix = f" after {cached}" if cached else ""
        yield Row("prefill attention", f"{len(counts)} x {counts[0]}{prefix}", ours, floor, torchs)
    starts = torch.arange(513, device=DEVICE, dtype=torch.int32) * 16
    lengths = torch.full((512,), 1024, device=DEVICE, dtype=torch.int32)
    plan = plan_prefill(
        rows=8192,
        max_seqs=512,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_seqlen_k=1024,
        dtype=BF16,
    )
    work = torch.empty(plan.items, 4, device=DEVICE, dtype=torch.int32)
    ours = timed(lambda: build_work_list(starts, lengths, 8192, plan, work), [()])
    yield Row("work list", "512 sequences, 8192 rows", ours, plan.items * 16 / limits.read)


def bench_linear(limits: Ceilings) -> Iterator[Row]:
    plain = [(rows, name, ()) for rows in (1, 2, 4, 8, 16, 32, 64) for name in PRODUCTS]
    fused = [(rows, *what) for rows in (1, 8, 32) for what in FUSED]
    for rows, name, around in plain + fused:
        n, k = PRODUCTS[name]
        chooser = LinearChooser(repeats=REPEATS)
        tile = (64, 128) if 1 < rows <= 64 else None
        chosen = chooser.measure(ProductKey(rows, n, k, BF16, DEVICE, around, tile))
        times = next(iter(chooser.milliseconds.values()))
        ours = min(time for way, time in times.items() if way != TORCH) * 1000
        floor = (n * k + rows * (n + k)) * 2 / limits.read
        label = f"{name}{''.join(f' + {work}' for work in around)}, {rows} x {n} x {k}: {_named(chosen)}"
        yield Row("linear", label, ours, floor, times[TORCH] * 1000)


def _named(choice: Choice) -> str:
    """A choice in a few words."""
    config = choice.config
    if config is None:
        return "torch"
    if isinstance(config, GemvConfig):
        return f"gemv {config.block_n}x{config.block_k}{' norm inside' if choice.fused_norm else ''}"
    split = f" split {config.split_k}" if config.split_k > 1 else ""
    return f"{'packed' if choice.packed else 'skinny'} {config.block_n}x{config.block_k}{split}"


class DecodeLayers:
    """32 decoder layers of the 8B shape with weights and caches of their own, as a decode step runs them."""

    count, context = 32, 1024

    def __init__(self) -> None:
        shapes = {name: shape for name, shape in PRODUCTS.items() if name != "lm_head"}
        self.weights = [
            {n: randn(*shape).mul_(0.02) for n, shape in shapes.items()} for _ in range(self.count)
        ]
        self.tiles = [{n: pack(weight) for n, weight in layer.items()} for layer in self.weights]
        self.gain = torch.ones(4096, device=DEVICE, dtype=BF16)
        self.cos_sin = torch.rand(self.context, HEAD_DIM, device=DEVICE)

    def use_rows(self, rows: int) -> int:
        """Fill caches for `rows` sequences; bytes a step must read."""
        self.caches = [decode_set(rows, self.context, BF16)[1:] for _ in range(self.count)]
        self.positions = torch.full((rows,), self.context - 1, device=DEVICE)
        self.slots = torch.arange(rows, device=DEVICE) + BLOCK
        weights = sum(weight.nbytes for layer in self.weights for weight in layer.values())
        return weights + 2 * self.count * rows * self.context * KV_HEADS * HEAD_DIM * 2

    def step(self, x: torch.Tensor, packed: bool) -> torch.Tensor:
        nothing = dict.fromkeys(PRODUCTS)
        for weights, tiles, cache in zip(self.weights, self.tiles, self.caches, strict=True):
            given = tiles if packed else nothing
            norm = {"norm_weight": self.gain, "eps": 1e-5}
            keys, values, tables, lengths, attended = cache
            query, key, value = _split(linear(x, weights["qkv"], tiles=given["qkv"], **norm))
            rotary_and_cache(query, key, value, self.positions, self.cos_sin, keys, values, self.slots)
            paged_decode(query, keys, values, tables, lengths, attended, scale=HEAD_DIM**-0.5)
            x = linear(attended.flatten(1), weights["o"], tiles=given["o"], residual=x)
            up = linear(x, weights["gate_up"], tiles=given["gate_up"], silu=True, **norm)
            x = linear(up, weights["down"], tiles=given["down"], residual=x)
        return x


def bench_layers(limits: Ceilings) -> Iterator[Row]:
    """All a decode step of 32 layers launches, but the embedding, the head and the sampling, in one graph."""
    layers = DecodeLayers()
    for rows, packed in ((1, False), (8, False), (8, True), (32, False), (32, True)):
        floor = layers.use_rows(rows) / limits.read
        x = randn(rows, 4096)
        with measuring():
            layers.step(x, packed)
        spent = time_in_graph(lambda x=x, packed=packed: layers.step(x, packed), repeats=REPEATS) * 1000
        yield Row("32 layers", f"{rows} x {layers.context}{', packed' if packed else ''}", spent, floor)


def bench_sampling(limits: Ceilings) -> Iterator[Row]:
    vocab = 128256
    for rows in (1, 32, 256):
        # peaked as a model's are: a few tokens stand out of a wide field
        sets = rotated(lambda r=rows: (torch.randn(r, vocab, device=DEVICE) * 2.5,), rows * vocab * 4)
        for (logits,) in sets:
            logits[:, :200] += torch.rand(rows, 200, device=DEVICE) * 14
        floor = rows * vocab * 4 / limits.read
        torchs = timed(lambda x: torch.argmax(x, dim=1), sets)
        yield Row("greedy", f"{rows} x {vocab}", timed(greedy, sets), floor, torchs)
        row = torch.ones(rows, device=DEVICE)
        for name, top_k, top_p in (
            ("plain", 0, 1.0),
            ("top-p 0.9", 0, 0.9),
            ("top-k 50, top-p 0.9", 50, 0.9),
        ):
            settings = {
                "temperature": row * 0.8, "top_k": (row * top_k).int(), "top_p": row * top_p,
                "min_p": row * 0, "seeds": row.long(), "steps": row.long(),
            }  # fmt: skip
            ours = timed(lambda x, s=settings: sample(x, **s), sets)
            torchs = timed(lambda x, k=top_k, p=top_p: _torch_sample(x, 0.8, k, p), sets)
            yield Row(f"sample, {name}", f"{rows} x {vocab}", ours, floor, torchs)


def _torch_sample(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    logits = logits / temperature
    if top_k or top_p < 1:
        ordered, order = logits.sort(dim=1, descending=True)
        if top_k:
            ordered[:, top_k:] = float("-inf")
        mass = ordered.softmax(dim=1)
        ordered = ordered.masked_fill(mass.cumsum(dim=1) - mass > top_p, float("-inf"))
        drawn = ordered.softmax(dim=1) / torch.empty_like(ordered).exponential_(1)
        return order.gather(1, drawn.argmax(dim=1, keepdim=True))
    return (logits.softmax(dim=1) / torch.empty_like(logits).exponential_(1)).argmax(dim=1)


def bench_launch(_: Ceilings) -> Iterator[Row]:
    """Host microseconds of a launch; the floor column is a graph launch's."""
    both, out = randn(1, 512), randn(1, 256)
    direct, front = Launcher(_silu_mul_kernel), Launcher(_silu_mul_kernel, precompiled=False)
    graph = torch.cuda.CUDAGraph()
    small = randn(16)
    direct((1, 1, 1), (both, out), (512, 256, 256))
    with torch.cuda.graph(graph):
        small.add_(1)
    floor = _host_time(graph.replay)
    add = _host_time(lambda: torch.add(small, 1, out=small))
    grid, args, constants = (1, 1, 1), (both, out), (512, 256, 256)
    yield Row("launch, JIT front", "2 tensors", _host_time(lambda: front(grid, args, constants)), floor, add)
    yield Row("launch, direct", "2 tensors", _host_time(lambda: direct(grid, args, constants)), floor, add)
    query, keys, values, tables, lengths, result = decode_sets(1, 256, BF16)[0]
    plan = plan_decode(seqs=1, kv_heads=KV_HEADS, head_dim=HEAD_DIM, max_seqlen_k=256, dtype=BF16)
    call = _host_time(
        lambda: paged_decode(query, keys, values, tables, lengths, result, scale=0.1, plan=plan)
    )
    yield Row("paged_decode call", f"{1 + (plan.splits > 1)} direct launches", call, floor)


def _host_time(call: Callable[[], object], batch: int = 200) -> float:
    """Median over batches of the microseconds a call keeps the host busy."""
    medians = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(batch):
            call()
        medians.append((time.perf_counter() - start) / batch * 1e6)
    torch.cuda.synchronize()
    return statistics.median(medians)


SECTIONS = {
    "launch": bench_launch,
    "norm": bench_norm,
    "elementwise": bench_elementwise,
    "rotary": bench_rotary,
    "decode": bench_decode,
    "prefill": bench_prefill,
    "linear": bench_linear,
    "layers": bench_layers,
    "sampling": bench_sampling,
}


def main() -> None:
    global REPEATS
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all when none is named")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="graph replays a median is taken over")
    given = parser.parse_args()
    unknown = set(given.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    if not torch.cuda.is_available():
        sys.exit("bench_kernels: needs a CUDA or HIP device")
    REPEATS = given.repeats
    torch.manual_seed(0)
    limits = measure_ceilings()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print(f"read bandwidth {limits.read / 1e6:.3f} TB/s, matrix rate {limits.matrix / 1e6:.0f} TFLOP/s\n")
    print("| kernel | shape | us | floor us | x floor | torch us | x torch |\n|---|---|---|---|---|---|---|")
    for name in given.sections or SECTIONS:
        for row in SECTIONS[name](limits):
            theirs = (
                ("-", "-") if row.torchs is None else (f"{row.torchs:.1f}", f"{row.ours / row.torchs:.2f}")
            )
            line = (
                row.kernel,
                row.shape,
                f"{row.ours:.1f}",
                f"{row.floor:.1f}",
                f"{row.ours / row.floor:.2f}",
                *theirs,
            )
            print(f"| {' | '.join(line)} |", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
