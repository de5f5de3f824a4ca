"""From `source/*.c` to a library for this machine's processor: compiled at first use, then kept on disk."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from atom.models.cpu.kernels import CpuKernels

logger = logging.getLogger(__name__)

_SOURCE = Path(__file__).parent / "source"
_FLAGS = (
    *("-O2", "-march=native", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-std=gnu11"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)
_COMPILERS = ("gcc", "cc", "clang")


@functools.cache
def cpu_kernels() -> CpuKernels | None:
    """The kernels, None where they cannot be had: no compiler, no Linux, a compiler that fails.

    Layers then use torch's own operations. The log says why, and the first time that it takes seconds.
    """
    try:
        return CpuKernels(_load())
    except _NoKernelsError as error:
        logger.info("CPU kernels are not used, torch's operations are: %s", error)
    except (OSError, AttributeError) as error:
        logger.warning("CPU kernels are not used, torch's operations are: %s", error)
    return None


class _NoKernelsError(Exception):
    """Why there are none."""


def _load() -> ctypes.CDLL:
    if not sys.platform.startswith("linux"):
        raise _NoKernelsError(f"they are for Linux, not {sys.platform}")
    # torch's own OpenMP library resolves theirs, so that both share one pool of threads.
    ctypes.CDLL(_openmp_of_torch(), ctypes.RTLD_GLOBAL)
    compiler = _compiler()
    key = _key(compiler)
    folder = Path("~/.cache/atom/cpu_kernels").expanduser()
    kept = _kept(folder, key)
    if kept is not None:
        return ctypes.CDLL(str(kept))
    with tempfile.TemporaryDirectory(prefix="atom-cpu-") as scratch:
        built = _compile(compiler, Path(scratch))
        try:
            return ctypes.CDLL(str(_keep(built, folder, key)))
        except OSError as error:
            logger.info("CPU kernels are compiled for this process alone: %s", error)
            return ctypes.CDLL(str(built))


def _openmp_of_torch() -> str:
    torch.get_num_threads()  # has loaded it
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rsplit(maxsplit=1)[-1]
        if Path(path).name.startswith(("libgomp", "libiomp5", "libomp")):
            return path
    raise _NoKernelsError("this torch has no OpenMP")


def _compiler() -> str:
    asked = os.environ.get("CC")
    for name in (asked,) if asked else _COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise _NoKernelsError(f"no C compiler: {asked or ', '.join(_COMPILERS)} is not on the path")


def _key(compiler: str) -> str:
    """Everything that decides what the compiler makes."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    features = next((line for line in cpuinfo if line.lower().startswith(("flags", "features"))), "")
    parts = [compiler, version, features, *_FLAGS]
    parts += [f"{path.name}\n{path.read_text()}" for path in sorted(_SOURCE.glob("*.[ch]"))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _kept(folder: Path, key: str) -> Path | None:
    """The library that was kept, if it is whole: its name holds its digest."""
    for path in folder.glob(f"{key}-*.so"):
        if path.name == _name(key, path):
            return path
        logger.warning("%s is damaged: the CPU kernels are compiled again", path)
        path.unlink(missing_ok=True)
    return None


def _name(key: str, path: Path) -> str:
    return f"{key}-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.so"


def _keep(built: Path, folder: Path, key: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _name(key, built)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="building-", delete=False) as file:
        file.write(built.read_bytes())
    Path(file.name).replace(path)  # whole or not at all, whoever else does the same
    return path


def _compile(compiler: str, scratch: Path) -> Path:
    logger.info("compiling the CPU kernels for this processor, once, with %s", compiler)
    objects = {source: scratch / f"{source.stem}.o" for source in sorted(_SOURCE.glob("*.c"))}
    running = [
        subprocess.Popen(
            [compiler, *_FLAGS, "-c", str(source), "-o", str(target)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for source, target in objects.items()
    ]
    said = [process.communicate()[1] for process in running]
    for process, source, text in zip(running, objects, said, strict=True):
        if process.returncode:
            raise OSError(f"{compiler} cannot compile {source.name}: {text.strip()[-400:]}")
    library = scratch / "kernels.so"
    # Linked without -fopenmp: that would bring a second OpenMP library.
    linked = subprocess.run(
        [compiler, "-shared", *map(str, objects.values()), "-o", str(library), "-lm"],
        capture_output=True,
        text=True,
        check=False,
    )
    if linked.returncode:
        raise OSError(f"{compiler} cannot link the CPU kernels: {linked.stderr.strip()[-400:]}")
    return library
