"""Checkpoints on disk: Hugging Face folders and GGUF files behind one interface."""

from __future__ import annotations

from atom.models.checkpoint.checkpoint import Checkpoint, TensorInfo, TensorSource
from atom.models.checkpoint.generation import GenerationDefaults
from atom.models.checkpoint.loading import Progress, WeightReader, load_weights, progress_bar
from atom.models.checkpoint.opening import open_checkpoint
from atom.models.checkpoint.tokenizer_data import TokenizerData

__all__ = [
    "Checkpoint",
    "GenerationDefaults",
    "Progress",
    "TensorInfo",
    "TensorSource",
    "TokenizerData",
    "WeightReader",
    "load_weights",
    "open_checkpoint",
    "progress_bar",
]
