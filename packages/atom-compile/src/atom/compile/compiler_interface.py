"""The compilers there are, and which one a configuration means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom.compile.compiler_protocol import CompiledCallable, CompilerInterface
from atom.compile.eager_adaptor import EagerAdaptor
from atom.compile.inductor import AlwaysHitShapeEnv, InductorAdaptor
from atom.compile.inductor_standalone import InductorStandaloneAdaptor

if TYPE_CHECKING:
    from atom.config import CompilationConfig

__all__ = [
    "AlwaysHitShapeEnv",
    "CompiledCallable",
    "CompilerInterface",
    "EagerAdaptor",
    "InductorAdaptor",
    "InductorStandaloneAdaptor",
    "make_compiler",
]


def make_compiler(compilation_config: CompilationConfig) -> CompilerInterface:
    """`EagerAdaptor` without Inductor; else `InductorStandaloneAdaptor` from torch 2.8 on, before it
    `InductorAdaptor`."""
    if not compilation_config.use_inductor:
        return EagerAdaptor()
    return InductorStandaloneAdaptor() if torch_release() >= (2, 8) else InductorAdaptor()


def torch_release() -> tuple[int, int]:
    """Major and minor version of torch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)
