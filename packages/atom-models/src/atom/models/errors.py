"""Errors of atom-models.

    ModelsError
    └── CheckpointError (ValueError)         a checkpoint that cannot be opened, or not become a model
        ├── CorruptCheckpointError           damaged, cut off, incomplete, or not what it claims to be
        ├── UnsupportedCheckpointError       sound, but of an architecture or number format nobody here reads
        ├── ModelConfigError                 its configuration describes no model that can be built
        └── WeightsError                     its tensors do not fit the model: missing, unexpected, misshapen

Layers and kernels draw their own below the root, in `layers/errors.py` and `kernels/errors.py`.
Every message is one line that names the file, the tensor or key, and what is wrong with it.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "CorruptCheckpointError",
    "ModelConfigError",
    "ModelsError",
    "UnsupportedCheckpointError",
    "WeightsError",
]


class ModelsError(Exception):
    """Root of what atom-models raises on purpose."""


class CheckpointError(ModelsError, ValueError):
    """A checkpoint cannot be opened, or cannot become a model."""


class CorruptCheckpointError(CheckpointError):
    """The files are damaged, cut off, incomplete, or not what they claim to be."""


class UnsupportedCheckpointError(CheckpointError):
    """The files are sound, but hold an architecture or number format that is not supported."""


class ModelConfigError(CheckpointError):
    """The checkpoint's configuration describes no model that can be built."""


class WeightsError(CheckpointError):
    """The checkpoint's tensors do not fit the model."""
