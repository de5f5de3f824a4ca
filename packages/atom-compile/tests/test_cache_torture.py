"""What may happen to a cache: killed writers, damage, crowds, full and read-only disks, changed surroundings.

Each case ends with right answers, and either a hit or a logged recompile. The compiler here saves files
without generating code, so that what is tested is the cache, in real processes.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import fx

from atom.compile import check_cache, clear_cache, compilation_counter, list_cache, manager
from atom.compile.artifact_store import ArtifactStore
from atom.compile.manager import CompilerManager

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IDS = torch.arange(5)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def graph_number(number: int) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.add, (x, number)),))
    return fx.GraphModule({}, graph)


def serve(config: Any, root: Path, numbers: range) -> None:
    """Load or compile some graphs, and check what they compute."""
    made = CompilerManager(config.compilation_config)
    made.initialize_cache(root / ("0" * 32) / "rank_0" / "model", ArtifactStore(root))
    x = torch.ones(3)
    for number in numbers:
        (y,) = made.compile(graph_number(number), [x], number).call(x)
        assert torch.equal(y, torch.full((3,), 1.0 + number))
        made.save_to_file()


@pytest.mark.usefixtures("compilers")
def test_writers_killed_at_50_random_points_leave_only_whole_artifacts(
    config_for: Any, root: Path, in_children: Any
) -> None:
    config, generator = config_for(), random.Random(0)
    serve(config, root, range(1))  # imports what each child needs
    staging = root / "staging"
    killed = 0
    for attempt in range(50):
        numbers = range(attempt * 2, attempt * 2 + 100)
        before = staging.stat().st_mtime_ns
        (pid,) = in_children(lambda numbers=numbers: serve(config, root, numbers), wait=False)
        until = time.monotonic() + 5
        while staging.stat().st_mtime_ns == before and time.monotonic() < until:
            time.sleep(0.0005)  # until it writes
        time.sleep(generator.uniform(0.0, 0.02))
        os.kill(pid, signal.SIGKILL)
        killed += in_children.reap(pid) == -signal.SIGKILL
        if attempt % 10 == 9:
            assert check_cache(root) == []
    assert killed == 50
    manager._in_use.clear()
    compilation_counter.reset()
    serve(config, root, range(100))
    assert compilation_counter.num_artifacts_rejected == 0
    assert compilation_counter.num_cache_hits >= 25
    assert compilation_counter.num_cache_hits + compilation_counter.num_backend_compilations == 100
    assert check_cache(root, repair=True) == []


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("processes", [4, 8])
def test_a_crowd_on_an_empty_directory_compiles_each_piece_once(
    config_for: Any, stack_of: Any, root: Path, in_children: Any, new_process: Any, processes: int
) -> None:
    start = time.monotonic() + 0.5

    def start_together() -> None:
        time.sleep(max(0.0, start - time.monotonic()))
        model = stack_of(config_for(), layers=3)
        assert torch.equal(model(IDS), model.forward(IDS))
        (root / f"compiled-{os.getpid()}").write_text(str(compilation_counter.num_backend_compilations))

    root.mkdir()
    assert in_children(*[start_together] * processes) == [0] * processes
    assert sum(int(path.read_text()) for path in root.glob("compiled-*")) == 3
    assert check_cache(root) == []
    new_process()
    stack_of(config_for(), layers=3)(IDS)
    assert compilation_counter.num_cache_hits == 3
    assert compilation_counter.num_backend_compilations == 0


@pytest.mark.usefixtures("compilers")
def test_two_settings_at_once_do_not_mix(
    config_for: Any, stack_of: Any, root: Path, in_children: Any, new_process: Any
) -> None:
    def run(size: int) -> None:
        model = stack_of(config_for(), layers=2, size=size)
        assert torch.equal(model(IDS), model.forward(IDS))

    assert in_children(*[lambda size=size: run(size) for size in (8, 12) * 2]) == [0] * 4
    assert check_cache(root) == []
    for size in (8, 12):
        new_process()
        run(size)
        assert compilation_counter.num_backend_compilations == 0


@pytest.mark.usefixtures("compilers")
def test_clearing_in_a_loop_costs_the_cache_not_the_run(
    config_for: Any, root: Path, in_children: Any
) -> None:
    config = config_for()

    def clear() -> None:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            clear_cache(root)
            time.sleep(0.002)

    def use() -> None:
        until = time.monotonic() + 1.2
        while time.monotonic() < until:
            manager._in_use.clear()
            serve(config, root, range(5))

    assert in_children(clear, *[use] * 3) == [0] * 4
    assert check_cache(root) == []


@pytest.mark.usefixtures("compilers")
def test_damage_anywhere_is_a_logged_recompile(
    config_for: Any, root: Path, new_process: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config, generator = config_for(), random.Random(1)
    serve(config, root, range(3))
    for number in range(40):
        path = generator.choice([path for path in root.rglob("*") if path.is_file() and path.stat().st_size])
        content = bytearray(path.read_bytes())
        if number % 2:
            content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        else:
            del content[generator.randrange(len(content)) :]
        path.write_bytes(content)
        new_process()
        serve(config, root, range(3))
        counter = compilation_counter
        assert counter.num_artifacts_rejected == counter.num_backend_compilations <= 1
        if counter.num_artifacts_rejected:
            assert "compiled again" in caplog.text
        caplog.clear()
        assert [p for p in check_cache(root) if "artifacts" in str(p.path)] == []
    new_process()
    serve(config, root, range(3))
    assert compilation_counter.num_cache_hits == 3


@pytest.mark.usefixtures("compilers")
def test_a_compiler_that_cannot_read_a_sound_artifact_compiles_again(
    config_for: Any, root: Path, new_process: Any, monkeypatch: pytest.MonkeyPatch, compilers: Any
) -> None:
    config = config_for()
    serve(config, root, range(2))
    new_process()

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise KeyError("a format of another day")

    monkeypatch.setattr(type(compilers[0]), "load", refuse)
    serve(config, root, range(2))
    assert compilation_counter.num_artifacts_rejected == 2
    assert compilation_counter.num_artifacts_published == 2


@pytest.mark.usefixtures("compilers")
def test_a_read_only_cache_serves_hits_and_recompiles_the_rest(
    config_for: Any, root: Path, new_process: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_for()
    serve(config, root, range(2))
    with read_only(root):
        new_process()
        serve(config, root, range(4))
    assert compilation_counter.num_cache_hits == 2
    assert compilation_counter.num_backend_compilations == 2
    assert compilation_counter.num_artifacts_published == 0
    assert "cannot be kept" in caplog.text


@pytest.mark.usefixtures("compilers")
def test_a_full_disk_costs_the_cache_not_the_run(
    config_for: Any, root: Path, new_process: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_for()
    with small_disk(root, kib=64):
        serve(config, root, range(12))
        kept = compilation_counter.num_artifacts_published
        assert 0 < kept < 12
        assert "cannot be kept" in caplog.text
        assert check_cache(root) == []
        new_process()
        serve(config, root, range(12))
        assert compilation_counter.num_cache_hits == kept


@pytest.mark.usefixtures("compilers")
def test_a_root_that_is_a_file_costs_the_cache_not_the_run(config_for: Any, root: Path) -> None:
    root.write_text("")
    serve(config_for(), root, range(2))
    assert compilation_counter.num_backend_compilations == 2


@pytest.mark.usefixtures("compilers")
def test_another_torch_version_option_or_thread_count_is_a_miss(
    config_for: Any, root: Path, new_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atom.compile import cache_key

    def compiled(config: Any) -> int:
        new_process()
        cache_key._versions.cache_clear()
        serve(config, root, range(2))
        return compilation_counter.num_backend_compilations

    plain, tuned = config_for(), config_for(inductor_compile_config={"max_autotune": True})
    assert compiled(plain) == 2
    assert compiled(tuned) == 2
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "2.99.0")
        assert compiled(plain) == 2
        assert compiled(plain) == 0
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert compiled(plain) == 2
    finally:
        torch.set_num_threads(threads)
    assert compiled(plain) == 0
    assert compiled(tuned) == 0
    assert len(list_cache(root).artifacts) == 8


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Even for root, whom permissions do not stop."""
    command = ["mount", "--bind", str(folder), str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True, capture_output=True)
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def small_disk(folder: Path, *, kib: int) -> Iterator[None]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
