"""Whether code for the CPU can be built here."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import torch

from atom.compile.errors import MissingToolchainError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["require_cpp_compiler"]


def require_cpp_compiler(inputs: Iterable[object], level: int) -> None:
    """Refuse to generate code for the CPU where nothing can compile it.

    Raises:
        MissingToolchainError: one of `inputs` is a CPU tensor, and there is no C++ compiler.
    """
    if not any(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in inputs):
        return
    from torch._inductor import config

    names = config.cpp.cxx
    candidates = [name for name in names if name] if isinstance(names, tuple | list) else [names]
    candidates = [os.environ.get("CXX", ""), *candidates, "g++", "clang++"]
    if not any(shutil.which(name) for name in candidates if name):
        raise MissingToolchainError(
            f"level {level} generates C++ for the CPU and found no compiler (tried CXX, "
            f"{', '.join(dict.fromkeys(name for name in candidates if name))}): install g++, or use level 0"
        )
