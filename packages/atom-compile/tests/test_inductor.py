"""Real code generation by the adaptor of this torch: answers, counts, artifacts without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
import torch

from atom.compile import MissingToolchainError, check_cache, compilation_counter, list_cache, make_compiler
from atom.compile.compiler_interface import AlwaysHitShapeEnv, torch_release

if TYPE_CHECKING:
    from pathlib import Path

IDS = torch.arange(7)

SCRIPT = """
    import logging, sys, torch
    from atom.config import CompilationConfig, Config
    from atom.compile import compilation_counter, direct_register_custom_op, support_torch_compile

    def attend(q: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(q.cumsum(0))

    direct_register_custom_op("atom_test_script_attend", attend, ["out"])

    @support_torch_compile
    class Model(torch.nn.Module):
        def __init__(self, *, atom_config, prefix=""):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                y = torch.relu(layer(x)) + x
                x = torch.empty_like(y)
                torch.ops.aiter.atom_test_script_attend(y, x)
            return x

    torch.manual_seed(0)
    torch.set_num_threads(1)
    ops = ["aiter.atom_test_script_attend"]
    config = CompilationConfig(level=3, splitting_ops=ops, cache_dir=sys.argv[1])
    model = Model(atom_config=Config("x", compilation_config=config))
    with torch.no_grad():
        for rows in (5, 1, 9):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(model(x), model.forward(x))
    c = compilation_counter
    print("COUNTS", c.num_pieces, c.num_backend_compilations, c.num_cache_hits, c.num_artifacts_rejected)
"""


def start_process(cache: Path, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(cache)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
    )


def counts(process: subprocess.Popen[str]) -> list[int]:
    output, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    (line,) = [line for line in output.splitlines() if line.startswith("COUNTS")]
    return [int(word) for word in line.split()[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("level", [2, 3])
def test_30_identical_layers_are_three_compilations(config_for: Any, stack_of: Any, level: int) -> None:
    model = stack_of(config_for(level), layers=30 if level == 3 else 3)
    for size in (7, 1, 2, 19):
        ids = torch.arange(size)
        torch.testing.assert_close(model(ids), model.forward(ids), rtol=1e-4, atol=1e-5)
    assert len(model.compiled_codes) == 1
    assert compilation_counter.num_pieces == (31 if level == 3 else 1)
    assert compilation_counter.num_backend_compilations == (3 if level == 3 else 1)


@pytest.mark.slow
def test_a_crowd_compiles_once_and_a_fresh_process_needs_no_compiler(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    crowd = [start_process(cache) for _ in range(4)]
    results = [counts(process) for process in crowd]
    assert sum(result[1] for result in results) == 1  # all four layers are one piece
    assert all(result[0] == 4 and result[3] == 0 for result in results)
    assert len(list_cache(cache).artifacts) == 1
    failing = tmp_path / "bin"
    failing.mkdir()
    for name in ("g++", "c++", "gcc", "cc", "clang++"):
        (failing / name).write_text("#!/bin/sh\nexit 1\n")
        (failing / name).chmod(0o755)
    # Before 2.8 Inductor asks for the compiler's version to look up its own cache entry.
    path = f"{failing}:{os.environ['PATH']}" if torch_release() >= (2, 8) else os.environ["PATH"]
    warm = counts(start_process(cache, PATH=path))
    assert warm == [4, 0, 1, 0]
    for library in cache.rglob("*.so"):
        library.write_bytes(b"no library")
    assert counts(start_process(cache)) == [4, 1, 0, 1]
    assert check_cache(cache) == []


@pytest.mark.slow
def test_a_size_in_compile_sizes_gets_a_form_of_its_own_when_it_is_met(
    config_for: Any, stack_of: Any
) -> None:
    model = stack_of(config_for(compile_sizes=[4, 8]), layers=2)
    for size, compiled in ((4, 3), (4, 6), (4, 6), (5, 6)):
        ids = torch.arange(size)
        torch.testing.assert_close(model(ids), model.forward(ids), rtol=1e-4, atol=1e-5)
        assert compilation_counter.num_backend_compilations == compiled


def test_without_a_cpp_compiler_levels_2_and_3_end_with_one_clear_error(
    config_for: Any, stack_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    for level in (2, 3):
        with pytest.raises(MissingToolchainError, match=rf"level {level}.*g\+\+.*level 0"):
            stack_of(config_for(level))(IDS)


@pytest.mark.parametrize("level", [2, 3])
def test_without_inductor_nothing_is_generated(
    config_for: Any, stack_of: Any, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    model = stack_of(config_for(level, use_inductor=False), layers=2)
    assert torch.equal(model(IDS), model.forward(IDS))


def test_the_compiler_follows_torch_and_configuration(config_for: Any) -> None:
    newer = torch_release() >= (2, 8)
    name = make_compiler(config_for().compilation_config).name
    assert name == ("inductor_standalone" if newer else "inductor")
    assert make_compiler(config_for(use_inductor=False).compilation_config).name == "eager"


def test_the_stand_in_shape_environment_accepts_every_entry() -> None:
    env = AlwaysHitShapeEnv()
    assert env.evaluate_guards_expression("False", [1])
    assert env.get_pruned_guards([]) == []
    assert env.produce_guards_expression(placeholders=[]) == ""


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device")
def test_on_a_gpu_general_and_specific_forms_equal_eager_and_are_kept(
    config_for: Any, stack_of: Any, new_process: Any
) -> None:
    for _ in ("cold", "warm"):
        new_process()
        torch.manual_seed(0)
        model = stack_of(config_for(compile_sizes=[16]), layers=4, size=64).cuda()
        for size in (16, 16, 1, 40, 16):
            ids = torch.arange(size, device="cuda")
            torch.testing.assert_close(model(ids), model.forward(ids), rtol=1e-3, atol=1e-3)
    assert compilation_counter.num_backend_compilations == 0
    assert compilation_counter.num_cache_hits == 6


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device")
def test_on_a_gpu_static_input_buffers_keep_their_addresses(config_for: Any, stack_of: Any) -> None:
    model = stack_of(config_for(cudagraph_copy_inputs=True), layers=2, size=64).cuda()
    for size in (8, 3, 8):
        ids = torch.arange(size, device="cuda")
        torch.testing.assert_close(model(ids), model.forward(ids), rtol=1e-3, atol=1e-3)
