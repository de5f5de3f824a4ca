"""What a layer can raise.

ModelsError
└── LayerError
    ├── LayerArgumentError (also ValueError)     sizes or settings no layer can be built from
    └── AttentionSetupError (also RuntimeError)  an attention step without the cache or lengths it needs
"""

from __future__ import annotations

from atom.models.errors import ModelsError

__all__ = ["AttentionSetupError", "LayerArgumentError", "LayerError"]


class LayerError(ModelsError):
    """Anything the layers raise on purpose."""


class LayerArgumentError(LayerError, ValueError):
    """A size or setting that no layer can be built from."""


class AttentionSetupError(LayerError, RuntimeError):
    """The forward context lacks what an attention layer needs, or contradicts itself."""
