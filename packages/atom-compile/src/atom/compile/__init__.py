"""Piecewise `torch.compile` with a persistent cache that is shared between processes and never wrong.

Names load when they are used: a model that is only marked for compilation does not load Dynamo and Inductor.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from atom.compile.backend import VllmBackend
    from atom.compile.cache_store import CacheReport, check_cache, clear_cache, list_cache
    from atom.compile.compiler_interface import (
        CompilerInterface,
        EagerAdaptor,
        InductorAdaptor,
        InductorStandaloneAdaptor,
        make_compiler,
    )
    from atom.compile.counter import CompilationCounter, compilation_counter
    from atom.compile.custom_op import aiter_lib, direct_register_custom_op
    from atom.compile.decorators import support_torch_compile
    from atom.compile.manager import CompilerManager
    from atom.compile.monitor import (
        CompileMonitor,
        compile_monitor,
        end_monitoring_torch_compile,
        start_monitoring_torch_compile,
    )
    from atom.compile.piecewise_backend import ConcreteSizeEntry, PiecewiseBackend
    from atom.compile.split import SplitItem, mark_spliting_op, split_graph
    from atom.compile.wrapper import TorchCompileWrapperWithCustomDispatcher

__all__ = [
    "ArtifactError",
    "BufferUpdateError",
    "CacheReport",
    "CompilationCounter",
    "CompileError",
    "CompileMonitor",
    "CompileSettingError",
    "CompilerInterface",
    "CompilerManager",
    "ConcreteSizeEntry",
    "CustomOpError",
    "DynamicDimsError",
    "EagerAdaptor",
    "InductorAdaptor",
    "InductorStandaloneAdaptor",
    "MissingToolchainError",
    "PiecewiseBackend",
    "ShapeError",
    "SplitError",
    "SplitItem",
    "TorchCompileWrapperWithCustomDispatcher",
    "TracingError",
    "VllmBackend",
    "aiter_lib",
    "check_cache",
    "clear_cache",
    "compilation_counter",
    "compile_monitor",
    "direct_register_custom_op",
    "end_monitoring_torch_compile",
    "list_cache",
    "make_compiler",
    "mark_spliting_op",
    "split_graph",
    "start_monitoring_torch_compile",
    "support_torch_compile",
]

_HOMES = {
    "CacheReport": "cache_store",
    "CompilationCounter": "counter",
    "CompileMonitor": "monitor",
    "CompilerInterface": "compiler_interface",
    "CompilerManager": "manager",
    "ConcreteSizeEntry": "piecewise_backend",
    "EagerAdaptor": "compiler_interface",
    "InductorAdaptor": "compiler_interface",
    "InductorStandaloneAdaptor": "compiler_interface",
    "PiecewiseBackend": "piecewise_backend",
    "SplitItem": "split",
    "TorchCompileWrapperWithCustomDispatcher": "wrapper",
    "VllmBackend": "backend",
    "aiter_lib": "custom_op",
    "check_cache": "cache_store",
    "clear_cache": "cache_store",
    "compilation_counter": "counter",
    "compile_monitor": "monitor",
    "direct_register_custom_op": "custom_op",
    "end_monitoring_torch_compile": "monitor",
    "list_cache": "cache_store",
    "make_compiler": "compiler_interface",
    "mark_spliting_op": "split",
    "split_graph": "split",
    "start_monitoring_torch_compile": "monitor",
    "support_torch_compile": "decorators",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'atom.compile' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"atom.compile.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
