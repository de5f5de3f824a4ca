"""Piecewise `torch.compile` with a persistent cache that is shared between processes and never wrong."""

from __future__ import annotations

from atom.compile.custom_op import aiter_lib, direct_register_custom_op
from atom.compile.decorators import support_torch_compile
from atom.compile.errors import (
    ArtifactError,
    BufferUpdateError,
    CompileError,
    CompileSettingError,
    CustomOpError,
    DynamicDimsError,
    MissingToolchainError,
    ShapeError,
    SplitError,
    TracingError,
)
from atom.compile.wrapper import TorchCompileWrapperWithCustomDispatcher

__all__ = [
    "ArtifactError",
    "BufferUpdateError",
    "CompileError",
    "CompileSettingError",
    "CustomOpError",
    "DynamicDimsError",
    "MissingToolchainError",
    "ShapeError",
    "SplitError",
    "TorchCompileWrapperWithCustomDispatcher",
    "TracingError",
    "aiter_lib",
    "direct_register_custom_op",
    "support_torch_compile",
]
