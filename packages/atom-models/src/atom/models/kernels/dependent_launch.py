"""Let a kernel start while the one before it on the stream is still finishing (programmatic dependent
launch).

Between two small kernels a device idles for a microsecond or more: the first drains, the second is launched
and waits for its first loads. On NVIDIA devices from compute capability 9.0 on, a kernel may be launched
early, do what does not depend on its predecessor, and wait. The rules that keep this exact:

- everything another kernel may have written is read, and everything is written, after `inputs_ready`;
- `let_next_start` comes after `inputs_ready`, so what runs early in the next kernel finds all but this one
  done;
- only weights are read before `inputs_ready`: the launch just before must not be the one that writes them.

Elsewhere (AMD, older devices, the interpreter) both are nothing at all, and launches are ordered as usual.
"""

from __future__ import annotations

import torch
import triton.language as tl

from atom.models.kernels.jit import jit

__all__ = ["inputs_ready", "is_enabled", "let_next_start", "set_enabled"]

_enabled: bool | None = None  # None: by device


@jit
def inputs_ready(OVERLAP: tl.constexpr) -> None:  # noqa: N803 - a compile-time constant
    """Wait until the kernels before this one are done and their writes are visible."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()


@jit
def let_next_start(OVERLAP: tl.constexpr) -> None:  # noqa: N803 - a compile-time constant
    """Allow the next kernel to be launched as soon as all programs of this one came here."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()


def is_enabled() -> bool:
    """Whether kernels are compiled and launched to overlap: by default where the current device can."""
    global _enabled
    if _enabled is None:
        _enabled = torch.version.hip is None and torch.cuda.get_device_capability() >= (9, 0)
    return _enabled


def set_enabled(enabled: bool | None) -> None:
    """Turn overlapping on or off for kernels not yet compiled; None goes back to the device's default."""
    global _enabled
    _enabled = enabled
