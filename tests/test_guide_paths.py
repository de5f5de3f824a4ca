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
    "atom.utils.decorators": "atom.compile.decorators",
    "atom.utils.custom_register": "atom.compile.custom_op",
}
"""Import path of the guide, and the module that it is."""

QUICK_REFERENCE = [
    ("atom.config", "CompilationLevel"),
    ("atom.config", "CompilationConfig"),
    ("atom.config", "CUDAGraphMode"),
    ("atom.utils.region_graph", "TokenGraph"),
    ("atom.utils.forward_context", "ForwardContext"),
    ("atom.utils.decorators", "support_torch_compile"),
    ("atom.utils.custom_register", "direct_register_custom_op"),
]
SOURCE_FILES = [
    ("atom.config", "Config"),
    ("atom.utils.region_graph", "ReqGraph"),
    ("atom.utils.region_graph", "eager_region"),
    ("atom.utils.region_graph", "token_graph"),
    ("atom.utils.region_graph", "graph_pool"),
    ("atom.utils.forward_context", "Context"),
    ("atom.utils.forward_context", "AttentionMetaData"),
    ("atom.utils.forward_context", "DPMetadata"),
    ("atom.utils.forward_context", "set_forward_context"),
    ("atom.utils.forward_context", "get_forward_context"),
    ("atom.utils.decorators", "TorchCompileWrapperWithCustomDispatcher"),
    ("atom.utils.decorators", "start_monitoring_torch_compile"),
    ("atom.utils.custom_register", "aiter_lib"),
]
TEXT = [
    ("atom.utils.forward_context", "reset_forward_context"),
    ("atom.utils.forward_context", "SpecDecodeMetadata"),
    ("atom.utils.forward_context", "KVCacheTensor"),
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


@pytest.mark.parametrize("path", sorted(set(HOMES) - {"atom.config"}))
def test_a_path_works_as_the_first_import_of_a_process(path: str) -> None:
    code = f"import {path}, sys; sys.exit(sys.modules['{path}'] is not sys.modules['{HOMES[path]}'])"
    subprocess.run([sys.executable, "-c", code], check=True)
