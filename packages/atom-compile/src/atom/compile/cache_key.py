"""What makes a compiled artifact another one: the circumstances of a compilation, hashed whole.

Two digests come from here. The *run digest* names a cache folder: configuration, source text of everything
that was traced, compiler and circumstances. The *piece digest* names an artifact: the piece's canonical
graph, the compiler, every option and the circumstances. Artifacts are found by the second alone, so a run
folder may hold stale entries and still never lead to a wrong artifact.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
import sys
import types
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

__all__ = [
    "circumstances",
    "digest_of",
    "piece_digest",
    "run_digest",
    "stable",
    "traced_files",
    "traced_source_digest",
]

_FILE_IN_TRACE = re.compile(r'File "([^"]+)", line')

FORMAT = "atom.compile/1"
"""Part of every digest: changes when artifacts or what is hashed change their meaning."""

_VARIABLES = (
    "TORCH",
    "TRITON",
    "PYTORCH",
    "CUDA",
    "HIP",
    "ROCM",
    "NVIDIA_TF32",
    "CXX",
    "CC",
    "CFLAGS",
    "CXXFLAGS",
)
"""Environment variables by prefix. Most also show in a torch configuration value; some are read directly."""
_LOCATIONS = (
    "CACHE",
    "_LOG",
    "MODULE_LOADING",
    "TRACE",
    "DEBUG",
    "DUMP",
    "VISIBLE_DEVICES",
    "PYTORCH_TEST",
    "TORCHELASTIC",
    "TORCHINDUCTOR_PYOBJECT",
)
"""Parts of names of variables that say where files go, what is printed or who a process is, not what is
compiled (and CUDA_MODULE_LOADING, which torch sets by itself on the way)."""


def digest_of(material: Any) -> str:
    """64 hex digits over `material`, equal in every process."""
    text = json.dumps([FORMAT, stable(material)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def stable(value: Any) -> Any:
    """`value` as JSON whose text is equal in every process for equal values."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {str(key): stable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [stable(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((stable(item) for item in value), key=repr)
    if isinstance(value, types.FunctionType):
        return [value.__module__, value.__qualname__, hashlib.sha256(value.__code__.co_code).hexdigest()]
    if hasattr(value, "uuid") and callable(value.uuid):  # Inductor's own passes say what they are
        return [type(value).__qualname__, repr(value.uuid())]
    text = repr(value)
    return [type(value).__module__, type(value).__qualname__, "" if " at 0x" in text else text]


def circumstances(devices: Iterable[torch.device]) -> dict[str, Any]:
    """Everything outside the graph and the options that compiled code may depend on."""
    return {
        "versions": _versions(),
        "devices": sorted({_device_text(device) for device in devices}),
        "settings": _torch_settings(),
        "flags": _torch_flags(),
        "variables": _variables(),
    }


def piece_digest(
    canonical_text: str,
    *,
    compiler: str,
    runtime_shape: int | None,
    options: dict[str, Any],
    surroundings: str,
) -> str:
    """The name of the artifact that serves a piece; `surroundings` is the digest of its `circumstances`."""
    return digest_of([canonical_text, compiler, runtime_shape, options, surroundings])


def run_digest(config_hash: str, source_digest: str, compiler: str, surroundings: str) -> str:
    """The name of the folder that a run's index lies in."""
    return digest_of([config_hash, source_digest, compiler, surroundings])[:32]


def traced_source_digest(files: Iterable[str]) -> str:
    """Digest over names and text of source files; a file that cannot be read counts by its name."""
    material = []
    for name in sorted(set(files)):
        path = Path(name)
        try:
            material.append([path.name, hashlib.sha256(path.read_bytes()).hexdigest()])
        except OSError:
            material.append([path.name, ""])
    return digest_of(material)


def traced_files(graph: fx.Graph) -> set[str]:
    """The source files behind the graph that Dynamo is compiling just now, torch's own left out."""
    import torch._dynamo.utils

    files = set()
    get_traced_code = getattr(torch._dynamo.utils, "get_traced_code", None)  # torch 2.8 and newer
    for code in (get_traced_code() if get_traced_code is not None else None) or ():
        files.add(code.co_filename)
    for node in graph.nodes:
        files.update(_FILE_IN_TRACE.findall(node.meta.get("stack_trace") or ""))
    own = str(Path(torch.__file__).parent)
    return {name for name in files if not name.startswith((own, "<"))}


@functools.cache
def _versions() -> dict[str, str]:
    from torch._inductor.codecache import torch_key

    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = ""
    key = torch_key()
    return {
        "torch": torch.__version__,
        "torch sources": key.hex() if isinstance(key, bytes) else str(key),
        "cuda": str(torch.version.cuda),
        "hip": str(torch.version.hip),
        "triton": triton,
        "python": sys.version,
        "implementation": platform.python_implementation(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _device_text(device: torch.device) -> str:
    if device.type == "cpu":
        return f"cpu {torch.backends.cpu.get_cpu_capability()} threads={torch.get_num_threads()}"
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return (
            f"cuda {properties.name} {properties.major}.{properties.minor} "
            f"{getattr(properties, 'gcnArchName', '')} {properties.multi_processor_count} "
            f"{properties.total_memory}"
        )
    return str(device)


def _torch_settings() -> dict[str, Any]:
    """Every configuration value of Inductor, AOTAutograd and the symbolic shapes."""
    import torch._functorch.config
    import torch._inductor.config
    import torch.fx.experimental._config

    modules: list[Any] = [torch._inductor.config, torch._functorch.config, torch.fx.experimental._config]
    return {module.__name__: module.save_config_portable() for module in modules}


def _torch_flags() -> dict[str, Any]:
    matmul = torch.backends.cuda.matmul
    return {
        "float32 matmul": torch.get_float32_matmul_precision(),
        "tf32": [torch.backends.cudnn.allow_tf32, matmul.allow_tf32],
        "reduced": [
            matmul.allow_fp16_reduced_precision_reduction,
            matmul.allow_bf16_reduced_precision_reduction,
        ],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "grad": torch.is_grad_enabled(),
        "autocast": [torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")],
        "dtype": str(torch.get_default_dtype()),
        "mkldnn": torch.backends.mkldnn.enabled,
    }


def _variables() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_VARIABLES) and not any(part in name for part in _LOCATIONS)
    }
