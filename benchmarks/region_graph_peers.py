"""The peers' capture classes for `bench_region_graphs.py`, from single files of their published wheels.

The files lie in a folder that is never committed. What they import and a benchmark does not need is stubbed;
the C++ helper for a tensor that owns nothing is replaced by torch calls.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import types
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch

from atom.graphs.structure import span

PEERS = Path(__file__).resolve().parent.parent / ".peers"
PEER_FILES = {
    "vllm": ["vllm/compilation/breakable_cudagraph.py"],
    "sglang": [
        "sglang/srt/model_executor/runner_backend_utils/breakable_cuda_graph/breakable_cuda_graph.py",
        "sglang/srt/model_executor/runner_backend_utils/breakable_cuda_graph/cuda_utils.py",
    ],
}
BREAKABLE = "sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph"


def weak_ref(x: Any) -> Any:
    """The peers' C++ helper for a tensor that owns nothing, in two calls of torch's own."""
    if not isinstance(x, torch.Tensor) or not x.is_cuda:
        return x
    storage = torch._C._construct_storage_from_data_pointer(x.data_ptr(), x.device, span(x))
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(storage, 0, x.size(), x.stride())


def stub(name: str, **attributes: Any) -> None:
    """A module that has whatever is asked of it, and the given attributes for what is used."""
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    module.__getattr__ = lambda attribute: MagicMock()  # type: ignore[method-assign]
    module.__path__ = []
    sys.modules[name] = module


def load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_vllm() -> Any:
    names = (
        "vllm vllm.envs vllm.compilation vllm.compilation.cudagraph_pool vllm.compilation.monitor "
        "vllm.config "
        "vllm.logger vllm.model_executor vllm.model_executor.layers vllm.model_executor.layers.fusion "
        "vllm.model_executor.offloader vllm.model_executor.offloader.base vllm.platforms vllm.utils"
    )
    for name in names.split():
        stub(name)
    quantized = type("QuantizedActivation", (), {})
    stub("vllm.model_executor.layers.fusion.quant_activation", QuantizedActivation=quantized)
    stub("vllm.forward_context", is_forward_context_available=lambda: False)
    stub("vllm.utils.torch_utils", weak_ref_tensor=weak_ref, weak_ref_tensors=weak_ref)
    return load("vllm.compilation.breakable_cudagraph", PEERS / PEER_FILES["vllm"][0])


def load_sglang() -> Any:
    for end in ("", ".srt", ".srt.model_executor", ".srt.model_executor.runner_backend_utils"):
        stub(f"sglang{end}")
    stub(BREAKABLE)
    stub("sglang.srt.utils", get_device_module=lambda: torch.cuda, is_hip=lambda: False, is_xpu=lambda: False)
    stub("sglang.srt.model_executor.runner_backend_utils.weak_ref_tensor", weak_ref_tensors=weak_ref)
    load(f"{BREAKABLE}.cuda_utils", PEERS / PEER_FILES["sglang"][1])
    return load(f"{BREAKABLE}.breakable_cuda_graph", PEERS / PEER_FILES["sglang"][0])


def fetch_peers() -> None:
    """Downloads the wheels with pip and keeps the few files the run loads."""
    for package, files in PEER_FILES.items():
        with tempfile.TemporaryDirectory() as folder:
            platforms = [f"--platform=manylinux_2_{n}_x86_64" for n in (28, 31, 34, 35)]
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-d", folder]
            subprocess.run([*pip, "--python-version=3.12", *platforms, package], check=True)
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for name in files:
                    archive.extract(name, PEERS)
            (PEERS / f"{package}.version").write_text(wheel.name.split("-")[1])


def peer_versions() -> dict[str, str]:
    found = {p: PEERS / f"{p}.version" for p in PEER_FILES}
    return {p: f.read_text().strip() for p, f in found.items() if f.exists()}
