"""Opening a Hugging Face folder: `config.json`, safetensors weights, tokenizer files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom.models.checkpoint.checkpoint import Checkpoint, TensorSource
from atom.models.checkpoint.generation import from_hf
from atom.models.checkpoint.hf_config import DTYPES, normalise_config
from atom.models.checkpoint.hf_tokenizer import read_hf_tokenizer
from atom.models.checkpoint.json_document import read_object
from atom.models.checkpoint.safetensors import open_safetensors

if TYPE_CHECKING:
    from pathlib import Path

CONFIG_FILE = "config.json"


def open_hf_folder(folder: Path) -> Checkpoint:
    """Open a folder that has a `config.json`.

    Raises:
        CheckpointError: a file is damaged, a shard is missing, the configuration names no architecture.
    """
    config_path = folder / CONFIG_FILE
    config = read_object(config_path)
    generation_path = folder / "generation_config.json"
    generation_config = read_object(generation_path) if generation_path.is_file() else {}
    source = open_safetensors(folder)
    return Checkpoint(
        folder,
        format="safetensors",
        config=normalise_config(config_path, config, saved_dtype=_most_common_dtype(source)),
        source=source,
        generation=from_hf(folder, config, generation_config),
        read_tokenizer=lambda: read_hf_tokenizer(folder),
    )


def _most_common_dtype(source: TensorSource) -> str:
    """The float format that most of the bytes are in; float32 if none is one that models compute in."""
    nbytes = dict.fromkeys(DTYPES, 0)
    for info in source.tensors.values():
        if info.dtype in nbytes:
            nbytes[info.dtype] += info.nbytes
    return max(nbytes, key=lambda name: nbytes[name])
