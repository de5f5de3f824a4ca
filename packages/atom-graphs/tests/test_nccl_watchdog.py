from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from atom.graphs import ReqGraph, TokenGraph, drain_nccl_works, nccl_watchdog


def init(backend: str, folder: str) -> None:
    dist.init_process_group(backend, init_method=f"file://{Path(folder) / 'store'}", rank=0, world_size=1)


def test_without_a_process_group_there_is_nothing_to_wait_for() -> None:
    assert not dist.is_initialized()
    assert drain_nccl_works() == 0


def test_a_gloo_group_has_no_watchdog() -> None:
    with tempfile.TemporaryDirectory() as folder:
        init("gloo", folder)
        try:
            assert drain_nccl_works() == 0
        finally:
            dist.destroy_process_group()


def test_every_group_with_a_watchdog_is_waited_for_after_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []

    class Group:
        def __init__(self, name: str) -> None:
            self._name = name

        def name(self) -> str:
            return self._name

        def _wait_for_pending_works(self) -> None:
            order.append(self._name)

    groups = {Group(name): None for name in ("nccl", "gloo", "NCCL")}
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("device"))
    monkeypatch.setattr(dist.distributed_c10d, "_world", SimpleNamespace(pg_map=groups))
    assert drain_nccl_works() == 2
    assert order == ["device", "nccl", "NCCL"]


def test_every_recording_waits_first(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    monkeypatch.setattr("atom.graphs.recorder.drain_nccl_works", lambda: waits.append("waited"))
    x = kind.randn(2, 2)
    tokens, requests = TokenGraph(lambda x: x + 1, recorder=kind.recorder), ReqGraph(recorder=kind.recorder)
    tokens.record(x)
    requests.record(lambda: x + 1, bucket=(2, 0))
    assert waits == ["waited", "waited"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_collectives_run_eagerly_and_are_then_recorded() -> None:
    assert nccl_watchdog.drain_nccl_works() == 0
    with tempfile.TemporaryDirectory() as folder:
        init("nccl", folder)
        try:
            x = torch.randn(64, 8, device="cuda")
            for _ in range(20):
                dist.all_reduce(x.clone())

            def forward(x: torch.Tensor) -> torch.Tensor:
                y = x * 2
                dist.all_reduce(y)
                return y + 1

            graph = TokenGraph(forward)
            graph.record(x)
            y = torch.randn(64, 8, device="cuda")
            assert torch.equal(graph.replay(y), y * 2 + 1)
            assert drain_nccl_works() == 1
            del graph
            torch.cuda.synchronize()
        finally:
            dist.destroy_process_group()


def test_a_tape_replays_collectives_and_waits_for_them() -> None:
    with tempfile.TemporaryDirectory() as folder:
        init("gloo", folder)
        try:

            def forward(x: torch.Tensor) -> torch.Tensor:
                y = x * 2
                dist.all_reduce(y)
                parts = [torch.empty_like(y)]
                dist.all_gather(parts, y + 1)
                return parts[0] * 3

            graph = TokenGraph(forward)
            graph.record(torch.randn(4, 2))
            for seed in (1, 2):
                torch.manual_seed(seed)
                x = torch.randn(4, 2)
                assert torch.equal(graph.replay(x), (x * 2 + 1) * 3)
        finally:
            dist.destroy_process_group()
