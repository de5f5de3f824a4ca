"""Compiling, keeping and finding the CPU kernels, whatever the disk and the compiler do."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch

from atom.models.cpu import build, cpu_kernels

pytestmark = pytest.mark.skipif(cpu_kernels() is None, reason="needs a C compiler")


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".cache" / "atom" / "cpu_kernels"


def works(library) -> bool:
    kernels = build.CpuKernels(library)
    x = torch.randn(2, 8)
    return torch.equal(kernels.silu_mul(x), cpu_kernels().silu_mul(x))


def test_the_second_time_nothing_is_compiled(home, monkeypatch):
    assert works(build._load())
    (kept,) = home.iterdir()
    assert kept.suffix == ".so"
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert works(build._load())


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", None])
def test_a_damaged_file_is_compiled_again_and_never_loaded(home, caplog, damage):
    build._load()
    (kept,) = home.iterdir()
    whole = kept.read_bytes()
    kept.unlink()  # a mapped library keeps its own pages
    kept.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    with caplog.at_level(logging.WARNING, logger="atom.models"):
        assert works(build._load())
    assert "is damaged: the CPU kernels are compiled again" in caplog.text
    (kept,) = home.iterdir()
    assert kept.stat().st_size > len(whole) // 2


def test_a_folder_that_cannot_be_written_costs_the_cache_alone(home, monkeypatch, tmp_path):
    (tmp_path / ".cache").write_text("a file in the way")
    assert works(build._load())


@pytest.mark.parametrize(
    ("compiler", "reason"), [("no-such-cc", "no C compiler"), ("false", "cannot compile")]
)
def test_without_a_working_compiler_layers_use_torch_and_the_log_says_why(
    home, monkeypatch, caplog, compiler, reason
):
    monkeypatch.setenv("CC", compiler)
    cpu_kernels.cache_clear()
    try:
        with caplog.at_level(logging.INFO, logger="atom.models"):
            assert cpu_kernels() is None
        assert reason in caplog.text
        assert "torch's operations are" in caplog.text
    finally:
        cpu_kernels.cache_clear()


def test_processes_that_start_at_once_all_get_them(home):
    program = "from atom.models.cpu import cpu_kernels; assert cpu_kernels() is not None"
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [process.wait(timeout=300) for process in processes] == [0, 0, 0]
    assert [path.suffix for path in home.iterdir()] == [".so"]
