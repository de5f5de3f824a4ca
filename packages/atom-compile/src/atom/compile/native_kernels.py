"""C++ kernels that travel with an artifact.

Inductor saves the source of its CPU kernels with an artifact, not the libraries it built from them, so
that loading one would run the C++ compiler again. Here the libraries are copied beside the artifact,
named by what they were built from, and loading uses them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import shutil
from typing import TYPE_CHECKING, Any

import torch
from torch._inductor.async_compile import AsyncCompile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = ["bundled_kernels", "recorded_kernels"]

logger = logging.getLogger(__name__)

FOLDER = "kernels"
_ENTRY = "kernel"
_DATA_PTR_VARIABLE = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"


class _Recording:
    """The kernels that Inductor built while it was recorded."""

    def __init__(self) -> None:
        self._results: dict[str, Any] = {}

    def add(self, name: str, result: Any) -> None:
        self._results[name] = result

    def copy_to(self, artifact: Path) -> None:
        """Copy the libraries into an artifact's folder. One that cannot be found is left to be rebuilt."""
        for name, result in self._results.items():
            kernel = result.result() if hasattr(result, "result") else result
            library = getattr(getattr(kernel, "__self__", None), "__file__", None)
            if library is None:
                logger.debug("no library behind the kernel %s", name)
                continue
            target = artifact / FOLDER / name
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(library, target)


@contextlib.contextmanager
def recorded_kernels() -> Iterator[_Recording]:
    """Note the kernels that Inductor builds in the body."""
    recording = _Recording()

    def record(
        build: Callable[..., Any], compiler: AsyncCompile, argtypes: Sequence[str], source: str
    ) -> Any:
        result = build(compiler, argtypes, source)
        recording.add(_library_name(argtypes, source), result)
        return result

    with _around_cpp_pybinding(record):
        yield recording


@contextlib.contextmanager
def bundled_kernels(artifact: Path) -> Iterator[None]:
    """Let Inductor use an artifact's own libraries in the body; what is not among them is built."""

    def find(build: Callable[..., Any], compiler: AsyncCompile, argtypes: Sequence[str], source: str) -> Any:
        library = artifact / FOLDER / _library_name(argtypes, source)
        return _load(library) if library.is_file() else build(compiler, argtypes, source)

    with _around_cpp_pybinding(find):
        yield


@contextlib.contextmanager
def _around_cpp_pybinding(around: Callable[..., Any]) -> Iterator[None]:
    build = AsyncCompile.cpp_pybinding

    def cpp_pybinding(self: AsyncCompile, argtypes: Sequence[str], source_code: str) -> Any:
        return around(build, self, argtypes, source_code)

    AsyncCompile.cpp_pybinding = cpp_pybinding  # type: ignore[method-assign]
    try:
        yield
    finally:
        AsyncCompile.cpp_pybinding = build  # type: ignore[method-assign]


def _library_name(argtypes: Sequence[str], source: str) -> str:
    return hashlib.sha256(repr((list(argtypes), source)).encode()).hexdigest() + ".so"


def _load(library: Path) -> Any:
    # The library asks for the address of torch's accessor in this variable when it is loaded.
    os.environ[_DATA_PTR_VARIABLE] = str(torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr)  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location(f"{library.stem}.{_ENTRY}", library)
    if spec is None or spec.loader is None:
        raise ImportError(f"{library} is not a loadable kernel")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, _ENTRY)
