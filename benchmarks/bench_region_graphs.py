"""What does a region graph cost, beside a bare device graph and beside the peers' capture classes?

One run answers, on a model of 32 layers with a region each: host and device time of a replay without breaks,
with bucket-fixed regions, and with 32 breaks; what of it is launches, region bodies and the rest; pool
bytes, memory of the executables and recording time of the default ladder to 512.

The peers' classes come from single files of their published wheels: `--fetch-peers` downloads the wheels and
keeps those files in a folder that is never committed. Without them the run has no peer rows.

    python benchmarks/bench_region_graphs.py --fetch-peers
    python benchmarks/bench_region_graphs.py --markdown benchmarks/results/NAME.md
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from region_graph_peers import fetch_peers, load_sglang, load_vllm, peer_versions, weak_ref

from atom.graphs import ReqGraph, TokenGraph, eager_region, graph_pool
from atom.graphs.driver import graph_launch
from atom.graphs.launch import Launch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LAYERS, HIDDEN, ROWS = 32, 2048, 8
LADDER = [*range(1, 9), *range(16, 513, 16)]


class Toy:
    """Per layer: a matrix product, the region (an addition into a buffer, or a new tensor), a scaling."""

    def __init__(self, attend: Callable[..., Any], *, fresh: bool = False) -> None:
        generator = torch.Generator("cuda").manual_seed(0)
        shape = (HIDDEN, HIDDEN)
        self.weights = [
            torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator) / HIDDEN**0.5
            for _ in range(LAYERS)
        ]
        self.bias = torch.randn(HIDDEN, device="cuda", dtype=torch.bfloat16, generator=generator)
        self.attend, self.fresh = attend, fresh

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            y = x @ weight
            if self.fresh:
                out = self.attend(y, self.bias)
            else:
                out = torch.empty_like(y)
                self.attend(y, self.bias, out)
            x = out * 0.5
        return x


class Wide:
    """Layers as wide as an 8B Llama's, the region between attention's two products; pool bytes only.

    Recordings reuse a layer's memory in the next, so four layers need what thirty-two do.
    """

    hidden, inner, layers = 4096, 14336, 4

    def __init__(self, attend: Callable[..., Any]) -> None:
        def weight(rows: int, columns: int) -> torch.Tensor:
            return torch.randn((rows, columns), device="cuda", dtype=torch.bfloat16) / rows**0.5

        h, i = self.hidden, self.inner
        self.weights = [
            (weight(h, h), weight(h, h), weight(h, 2 * i), weight(i, h)) for _ in range(self.layers)
        ]
        self.bias = torch.zeros(h, device="cuda", dtype=torch.bfloat16)
        self.attend = attend

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for query, output, up, down in self.weights:
            y = x @ query
            out = torch.empty_like(y)
            self.attend(y, self.bias, out)
            x = x + out @ output
            gate, value = (x @ up).chunk(2, dim=-1)
            x = x + (torch.nn.functional.silu(gate) * value) @ down
        return x


def into(y: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> None:
    torch.add(y, bias, out=out)


def new(y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.add(y, bias)


class Ours:
    name = "ours"
    hidden = HIDDEN
    model: Any

    def __init__(self, *, fresh: bool = False, bucket_fixed: bool = False) -> None:
        self.model = Toy(eager_region(new if fresh else into, bucket_fixed=bucket_fixed), fresh=fresh)
        self.graph = TokenGraph(self.model)

    def record(self, x: torch.Tensor) -> Any:
        self.graph.record(x)
        return lambda: self.graph.replay(x)

    def pool_bytes(self) -> int:
        return graph_pool("cuda").nbytes()


class OursWide(Ours):
    name = "ours, 8B width"
    hidden = Wide.hidden

    def __init__(self) -> None:
        self.model = Wide(eager_region(into))
        self.graph = TokenGraph(self.model)


class OursWhole:
    """Request graphs: the regions bucket-fixed, no breaks."""

    name = "ours, request graphs"

    def __init__(self) -> None:
        self.model = Toy(eager_region(into, bucket_fixed=True))
        self.graph = ReqGraph()

    def record(self, x: torch.Tensor) -> Any:
        bucket = (x.shape[0], 0)
        self.graph.record(lambda: self.model(x), bucket=bucket)
        return lambda: self.graph.replay(bucket)

    def pool_bytes(self) -> int:
        return graph_pool("cuda").nbytes()


class Vllm:
    name = "vLLM"

    def __init__(self, *, fresh: bool = False) -> None:
        assert not fresh, "vLLM's breaks take only regions that write a buffer they are given"
        self.peer = load_vllm()
        self.model = Toy(self.peer.eager_break_during_capture(into))
        self.pool, self.stream, self.kept = torch.cuda.graph_pool_handle(), torch.cuda.Stream(), []

    def record(self, x: torch.Tensor) -> Any:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream), self.peer.BreakableCUDAGraphCapture(pool=self.pool) as capture:
            out = self.model(x)
            weak = weak_ref(out)
            del out
        torch.cuda.current_stream().wait_stream(self.stream)
        self.kept.append((capture, weak))
        return capture.replay

    def pool_bytes(self) -> int:
        return segments_bytes(self.pool)


class Sglang:
    name = "SGLang"

    def __init__(self, *, fresh: bool = False) -> None:
        self.peer = load_sglang()
        self.model = Toy(self.peer.eager_on_graph(new if fresh else into), fresh=fresh)
        self.pool, self.stream, self.kept = torch.cuda.graph_pool_handle(), torch.cuda.Stream(), []

    def record(self, x: torch.Tensor) -> Any:
        graph = self.peer.BreakableCUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with self.peer.BreakableCUDAGraphCapture(graph, pool=self.pool, stream=self.stream):
            out = self.model(x)
            weak = weak_ref(out)
            del out
        torch.cuda.current_stream().wait_stream(self.stream)
        self.kept.append((graph, weak))
        return graph.replay

    def pool_bytes(self) -> int:
        return segments_bytes(self.pool)


SYSTEMS: dict[str, Any] = {
    "ours": Ours,
    "ours-whole": OursWhole,
    "ours-wide": OursWide,
    "vllm": Vllm,
    "sglang": Sglang,
}


def segments_bytes(pool: Any) -> int:
    return sum(
        s["total_size"] for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool)
    )


def host_us(call: Callable[[], Any], samples: int) -> list[float]:
    """Time until the call returns, the device idle before: what a replay takes from the host."""
    found = []
    for _ in range(samples):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        call()
        found.append((time.perf_counter_ns() - start) / 1e3)
    return found


def device_us(call: Callable[[], Any], samples: int) -> list[float]:
    """Time on the device, the host far ahead: a long sleep lets it enqueue everything first."""
    found = []
    for _ in range(samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(3_000_000)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e3)
    return found


def side_by_side(
    calls: dict[str, Callable[[], Any]],
    measure: Callable[..., list[float]],
    rounds: int = 6,
    samples: int = 40,
) -> dict[str, float]:
    """Medians, the calls taking turns so that a drift of the machine meets all of them."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        measure(call, 10)
    gc.disable()
    for _ in range(rounds):
        for name, call in calls.items():
            found[name] += measure(call, samples)
    gc.enable()
    return {name: statistics.median(times) for name, times in found.items()}


def bare_graph(model: Callable[[torch.Tensor], Any], x: torch.Tensor) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        model(x)
    return graph


def warmed(model: Callable[[torch.Tensor], Any], x: torch.Tensor) -> None:
    for _ in range(2):
        model(x)
    torch.cuda.synchronize()


def replay_times(peers: Iterable[str]) -> dict[str, Any]:
    """Host and device microseconds of one replay of the 32-region model at `ROWS` rows, by each way."""
    x = torch.randn(ROWS, HIDDEN, device="cuda", dtype=torch.bfloat16)
    plain = Toy(into)
    warmed(plain, x)
    full = bare_graph(plain, x)
    fixed = Toy(eager_region(into, bucket_fixed=True))
    warmed(fixed, x)
    requests, whole = ReqGraph(), TokenGraph(plain)
    requests.record(lambda: fixed(x), bucket=(ROWS, 0))
    whole.record(x)
    systems = {name: SYSTEMS[name]() for name in ("ours", *peers)}
    calls: dict[str, Callable[[], Any]] = {
        "bare CUDAGraph, whole model": full.replay,
        "ours, request graph (regions bucket-fixed)": lambda: requests.replay((ROWS, 0)),
        "ours, token graph without breaks": lambda: whole.replay(x),
        "eager": lambda: plain(x),
    }
    for system in systems.values():
        calls[f"{system.name}, 32 breaks"] = system.record(x)
    fresh = {name: SYSTEMS[name](fresh=True) for name in ("ours", "sglang") if name in systems}
    for system in fresh.values():
        calls[f"{system.name}, 32 breaks, regions that make a tensor"] = system.record(x)
    torch.cuda.synchronize()
    expected = plain(x)
    for replayed in (systems["ours"].graph.replay(x), requests.replay((ROWS, 0)), whole.replay(x)):
        torch.testing.assert_close(replayed, expected, rtol=0.02, atol=0.02)
    host = side_by_side(calls, host_us)
    del calls["eager"]
    return {"host": host, "device": side_by_side(calls, device_us), "parts": parts(systems["ours"], x)}


def parts(ours: Ours, x: torch.Tensor) -> dict[str, float]:
    """The pieces of a replay with breaks, timed alone, in the same minute as the whole."""
    recording = ours.graph.bucket(ROWS).recording
    launches = [c for c in recording.calls if isinstance(c, Launch)]
    regions = [c for c in recording.calls if not isinstance(c, Launch)]
    y = torch.randn(ROWS, HIDDEN, device="cuda", dtype=torch.bfloat16)
    outs = [torch.empty_like(y) for _ in regions]
    bias = ours.model.bias
    driver = graph_launch()
    assert driver is not None
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def all_of(these: list[Callable[[], Any]]) -> Callable[[], None]:
        def run() -> None:
            for call in these:
                call()

        return run

    def bodies() -> None:
        for out in outs:
            into(y, bias, out)

    def by_driver() -> None:
        for launch in launches:
            driver(launch.executable, stream)

    calls = {
        "33 launches by torch": all_of([launch.torch_launch for launch in launches]),
        "33 launches by the driver's call": by_driver,
        "32 bare region bodies": bodies,
        "32 region calls of the recording": all_of(regions),
        "whole replay": lambda: ours.graph.replay(x),
        "whole replay, its recording alone": recording.replay,
        "66 empty Python calls": all_of([lambda: None] * 66),
    }
    other = x[: ROWS // 2]
    ours.graph.record(other)
    alternating = itertools.cycle((x, other))
    calls["whole replay, another bucket than before"] = lambda: ours.graph.replay(next(alternating))
    # The others replay one bucket 40 times in a row, so a change at the first does not move their medians.
    return side_by_side(calls, host_us)


def ladder(name: str) -> dict[str, float]:
    """Records the default ladder, largest first, in a process of its own."""
    system = SYSTEMS[name]()
    hidden = getattr(system, "hidden", HIDDEN)
    buffer = torch.randn(LADDER[-1], hidden, device="cuda", dtype=torch.bfloat16)
    for rows in reversed(LADDER):
        system.model(buffer[:rows])
    torch.cuda.synchronize()
    before = system.pool_bytes()
    free, reserved, resident = memory()
    times, largest, keep = [], 0, []
    gc.disable()
    for rows in reversed(LADDER):
        start = time.perf_counter()
        keep.append(system.record(buffer[:rows]))
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        if rows == LADDER[-1]:
            largest = system.pool_bytes() - before
    gc.enable()
    free_unlaunched, reserved_unlaunched, _ = memory()
    firsts = []
    for replay in keep:  # the driver uploads an executable when it is first launched
        start = time.perf_counter()
        replay()
        torch.cuda.synchronize()
        firsts.append(time.perf_counter() - start)
    free_now, reserved_now, resident_now = memory()
    pool = system.pool_bytes() - before
    return {
        "record ms a bucket": statistics.median(times) * 1e3,
        "first replay ms a bucket": statistics.median(firsts) * 1e3,
        "record and first replay ms a bucket": (statistics.median(times) + statistics.median(firsts)) * 1e3,
        "record ms, whole ladder": sum(times) * 1e3,
        "pool MB, largest alone": largest / 1e6,
        "pool MB, ladder": pool / 1e6,
        "pool, ladder / largest": pool / largest,
        "executables recorded, device MB": (free - free_unlaunched - (reserved_unlaunched - reserved)) / 1e6,
        "executables launched, device MB": (free - free_now - (reserved_now - reserved)) / 1e6,
        "executables, host MB": (resident_now - resident) / 1e6,
    }


def memory() -> tuple[int, int, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved(), pages * 4096


def ladder_in_its_own_process(name: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--ladder", name], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def targets(replays: dict[str, Any], ladders: dict[str, dict[str, float]]) -> list[tuple[str, float, float]]:
    """(what, measured, at most)."""
    host, device, pieces = replays["host"], replays["device"], replays["parts"]
    full = "bare CUDAGraph, whole model"

    def step(name: str) -> float:
        """What a step takes: the host enqueues while the device works on it."""
        return max(host[name], device[name])

    floor = pieces["33 launches by torch"] + pieces["32 bare region bodies"]
    found = [
        ("bucket-fixed replay, host us", host["ours, request graph (regions bucket-fixed)"], 10.0),
        (
            "bucket-fixed replay, device / FULL",
            device["ours, request graph (regions bucket-fixed)"] / device[full],
            1.03,
        ),
        ("32 breaks, host / (launches + bodies)", pieces["whole replay"] / floor, 1.05),
        ("0 breaks, step / bare replay's", step("ours, token graph without breaks") / step(full), 1.03),
        ("pool, ladder / largest recording", ladders["ours"]["pool, ladder / largest"], 1.05),
        ("the same, a model of 8B width", ladders["ours-wide"]["pool, ladder / largest"], 1.05),
    ]
    peers = [n for n in ("vLLM", "SGLang") if f"{n}, 32 breaks" in device]
    if peers:
        best = min(device[f"{n}, 32 breaks"] for n in peers)
        found.append(("32 breaks, device / better peer", device["ours, 32 breaks"] / best, 1.02))
        best = min(host[f"{n}, 32 breaks"] for n in peers)
        found.append(("32 breaks, host / better peer", host["ours, 32 breaks"] / best, 1.02))
        for row in ("record ms a bucket", "record and first replay ms a bucket"):
            best = min(ladders[n][row] for n in peer_versions())
            found.append((f"{row.replace(' ms', '')} / better peer", ladders["ours"][row] / best, 1.02))
    return found


def report(replays: dict[str, Any], ladders: dict[str, dict[str, float]]) -> str:
    driver = torch.cuda.get_device_properties(0)
    lines = [
        f"Device: {driver.name}; torch {torch.__version__}; Python {sys.version.split()[0]}; "
        f"peers {peer_versions() or 'absent'}.",
        f"Model: {LAYERS} layers, hidden {HIDDEN}, bf16, {ROWS} rows. Medians of 240; microseconds.",
        "",
        "| replay | host | device |",
        "|---|---|---|",
    ]
    for name, value in replays["host"].items():
        device = replays["device"].get(name)
        lines.append(f"| {name} | {value:.1f} | {'' if device is None else f'{device:.1f}'} |")
    lines += ["", "| part of a replay with 32 breaks | host |", "|---|---|"]
    lines += [f"| {name} | {value:.1f} |" for name, value in replays["parts"].items()]
    names = list(ladders)
    lines += ["", f"| ladder of {len(LADDER)} buckets to {LADDER[-1]} | {' | '.join(names)} |"]
    lines.append("|---" * (len(names) + 1) + "|")
    for row in ladders[names[0]]:
        lines.append(f"| {row} | {' | '.join(f'{ladders[n][row]:.2f}' for n in names)} |")
    lines += ["", "| target | measured | at most | |", "|---|---|---|---|"]
    for what, measured, limit in targets(replays, ladders):
        lines.append(f"| {what} | {measured:.3f} | {limit} | {'met' if measured <= limit else 'MISSED'} |")
    return "\n".join(lines)


@torch.inference_mode()
def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--fetch-peers", action="store_true", help="download the peers' files and stop")
    arguments.add_argument(
        "--ladder", choices=SYSTEMS, help="record one system's ladder, print JSON and stop"
    )
    arguments.add_argument("--markdown", type=Path, help="write the tables here too")
    given = arguments.parse_args()
    if given.fetch_peers:
        fetch_peers()
        return
    if given.ladder:
        print(json.dumps(ladder(given.ladder)))
        return
    peers = list(peer_versions())
    ladders = {name: ladder_in_its_own_process(name) for name in ("ours", "ours-whole", "ours-wide", *peers)}
    text = report(replay_times(peers), ladders)
    print(text)
    if given.markdown:
        given.markdown.write_text(text + "\n")


if __name__ == "__main__":
    main()
