"""The one door to Triton's compiler.

In kernel signatures `tl.tensor` stands for whatever is not a compile-time constant: a pointer, a number or a
block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton

if TYPE_CHECKING:
    from collections.abc import Callable


def jit(function: Callable[..., Any]) -> Any:
    """A Triton kernel or device function; interpreted where TRITON_INTERPRET=1 was set before import."""
    return triton.jit(function)


def dot_precision(dtype: torch.dtype) -> str:
    """`input_precision` of a dot of operands of `dtype`: float32 is multiplied as such, not as tf32."""
    return "ieee" if dtype == torch.float32 else "tf32"


def is_interpreted(kernel: Any) -> bool:
    """Whether `kernel` runs in Triton's CPU interpreter, where nothing is ever compiled."""
    return not isinstance(kernel, triton.runtime.jit.JITFunction)
