"""Every import path and name of the guide leads to its home: the same module object, the same names."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

HOMES = {
    "atom.config": "atom.config",
    "atom.utils.region_graph": "atom.graphs.region_graph",
    "atom.utils.forward_context": "atom.graphs.forward_context",
    "atom.distributed.nccl_watchdog": "atom.graphs.nccl_watchdog",
    "atom.spec_decode.draft_graph": "atom.graphs.draft_graph",
    "atom.utils.backends": "atom.compile.backend",
    "atom.utils.compiler_inferface": "atom.compile.compiler_interface",
    "atom.utils.cuda_piecewise_backend": "atom.compile.piecewise_backend",
    "atom.utils.decorators": "atom.compile.decorators",
    "atom.utils.custom_register": "atom.compile.custom_op",
    "atom.model_engine.model_runner": "atom.runner.model_runner",
}
"""Import path of the guide, and the module that it is."""

QUICK_REFERENCE = [
    ("atom.config", "CompilationLevel"),
    ("atom.config", "CompilationConfig"),
    ("atom.config", "CUDAGraphMode"),
    ("atom.utils.region_graph", "TokenGraph"),
    ("atom.utils.forward_context", "ForwardContext"),
    ("atom.utils.backends", "VllmBackend"),
    ("atom.utils.backends", "CompilerManager"),
    ("atom.utils.compiler_inferface", "CompilerInterface"),
    ("atom.utils.compiler_inferface", "InductorAdaptor"),
    ("atom.utils.cuda_piecewise_backend", "PiecewiseBackend"),
    ("atom.utils.decorators", "support_torch_compile"),
    ("atom.utils.custom_register", "direct_register_custom_op"),
]
SOURCE_FILES = [
    ("atom.config", "Config"),
    ("atom.utils.region_graph", "ReqGraph"),
    ("atom.utils.region_graph", "eager_region"),
    ("atom.utils.region_graph", "token_graph"),
    ("atom.utils.region_graph", "graph_pool"),
    ("atom.utils.backends", "SplitItem"),
    ("atom.utils.backends", "split_graph"),
    ("atom.utils.backends", "PiecewiseCompileInterpreter"),
    ("atom.utils.forward_context", "Context"),
    ("atom.utils.forward_context", "AttentionMetaData"),
    ("atom.utils.forward_context", "DPMetadata"),
    ("atom.utils.forward_context", "set_forward_context"),
    ("atom.utils.forward_context", "get_forward_context"),
    ("atom.utils.compiler_inferface", "InductorStandaloneAdaptor"),
    ("atom.utils.compiler_inferface", "AlwaysHitShapeEnv"),
    ("atom.utils.cuda_piecewise_backend", "ConcreteSizeEntry"),
    ("atom.utils.decorators", "TorchCompileWrapperWithCustomDispatcher"),
    ("atom.utils.decorators", "start_monitoring_torch_compile"),
    ("atom.utils.custom_register", "aiter_lib"),
    ("atom.model_engine.model_runner", "ModelRunner"),
]
METHODS = [
    ("atom.config", "Config", "__post_init__"),
    ("atom.config", "Config", "_set_cudagraph_sizes"),
    ("atom.config", "CompilationConfig", "set_splitting_ops_for_v1"),
    ("atom.config", "CompilationConfig", "init_with_cudagraph_sizes"),
    *[
        ("atom.config", "CUDAGraphMode", name)
        for name in ("decode_mode", "mixed_mode", "separate_routine", "has_full_cudagraphs")
    ],
    ("atom.config", "CUDAGraphMode", "uses_tr_hybrid"),
    ("atom.config", "CUDAGraphMode", "max_cudagraph_mode"),
    ("atom.utils.region_graph", "TokenGraph", "captured_sizes"),
    ("atom.utils.region_graph", "TokenGraph", "record"),
    ("atom.utils.region_graph", "ReqGraph", "record"),
    ("atom.utils.region_graph", "ReqGraph", "replay"),
    *[
        ("atom.utils.compiler_inferface", "CompilerInterface", name)
        for name in ("initialize_cache", "compute_hash", "compile", "load")
    ],
    ("atom.utils.backends", "CompilerManager", "compile"),
    ("atom.utils.backends", "CompilerManager", "load"),
    ("atom.utils.backends", "VllmBackend", "__call__"),
    ("atom.utils.cuda_piecewise_backend", "PiecewiseBackend", "__call__"),
    ("atom.utils.decorators", "TorchCompileWrapperWithCustomDispatcher", "dispatch_to_code"),
    ("atom.model_engine.model_runner", "ModelRunner", "capture_cudagraph"),
    ("atom.model_engine.model_runner", "ModelRunner", "run_model"),
    ("atom.model_engine.model_runner", "ModelRunner", "_decode_graph"),
    ("atom.model_engine.model_runner", "ModelRunner", "_tr_hybrid_active"),
]
TEXT = [
    ("atom.utils.forward_context", "reset_forward_context"),
    ("atom.utils.forward_context", "SpecDecodeMetadata"),
    ("atom.utils.forward_context", "KVCacheTensor"),
    ("atom.utils.region_graph", "request_bucket"),
    ("atom.distributed.nccl_watchdog", "drain_nccl_works"),
    ("atom.spec_decode.draft_graph", "DraftGraph"),
]
"""Paths and names that the guide gives in its running text."""


@pytest.mark.parametrize("path", sorted(HOMES))
def test_a_path_of_the_guide_is_its_home_module(path: str) -> None:
    assert importlib.import_module(path) is importlib.import_module(HOMES[path])
    assert sys.modules[path] is sys.modules[HOMES[path]]


@pytest.mark.parametrize(("path", "name"), [*QUICK_REFERENCE, *SOURCE_FILES, *TEXT])
def test_a_name_of_the_guide_is_found_at_its_path(path: str, name: str) -> None:
    found: dict[str, Any] = {}
    exec(f"from {path} import {name} as found", found)
    assert found["found"] is getattr(importlib.import_module(HOMES[path]), name)


@pytest.mark.parametrize(("path", "owner", "name"), METHODS)
def test_a_method_of_the_guide_exists(path: str, owner: str, name: str) -> None:
    assert hasattr(getattr(importlib.import_module(path), owner), name)


@pytest.mark.parametrize(
    "path", ["atom.utils.region_graph", "atom.utils.backends", "atom.model_engine.model_runner"]
)
def test_a_path_works_as_the_first_import_of_a_process(path: str) -> None:
    code = f"import {path}, sys; sys.exit(sys.modules['{path}'] is not sys.modules['{HOMES[path]}'])"
    subprocess.run([sys.executable, "-c", code], check=True)
