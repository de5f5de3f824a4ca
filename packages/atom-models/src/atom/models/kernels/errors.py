"""What a kernel call can raise; a branch of the tree in `atom.models.errors`.

ModelsError
└── KernelError
    └── KernelArgumentError (also ValueError)   a shape, dtype, layout or size the kernel does not take
"""

from __future__ import annotations

from atom.models.errors import ModelsError

__all__ = ["KernelArgumentError", "KernelError"]


class KernelError(ModelsError):
    """Anything the kernels raise on purpose."""


class KernelArgumentError(KernelError, ValueError):
    """An argument that no launch of the kernel could be right for."""
