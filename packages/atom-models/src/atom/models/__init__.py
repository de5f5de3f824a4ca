"""Models annotated for ATOM, their layers, kernels, and checkpoint readers.

Names load when they are used: importing this package imports neither torch nor triton.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from atom.models.errors import (
    CheckpointError,
    CorruptCheckpointError,
    ModelConfigError,
    ModelsError,
    UnsupportedCheckpointError,
    WeightsError,
)

if TYPE_CHECKING:
    from atom.models.checkpoint import Checkpoint, open_checkpoint
    from atom.models.llama import LlamaConfig, LlamaForCausalLM
    from atom.models.registry import provider

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CorruptCheckpointError",
    "LlamaConfig",
    "LlamaForCausalLM",
    "ModelConfigError",
    "ModelsError",
    "UnsupportedCheckpointError",
    "WeightsError",
    "open_checkpoint",
    "provider",
]

_HOMES = {
    "Checkpoint": "checkpoint",
    "LlamaConfig": "llama",
    "LlamaForCausalLM": "llama",
    "open_checkpoint": "checkpoint",
    "provider": "registry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'atom.models' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"atom.models.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
