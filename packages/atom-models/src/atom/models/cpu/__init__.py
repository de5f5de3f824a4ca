"""Kernels for CPUs, written in C and compiled for the machine they run on, once.

`source/` holds them, `build` compiles and keeps them, `kernels` calls them with tensors, `ops` makes them
visible to whatever writes operations down.
"""

from __future__ import annotations

from atom.models.cpu.build import cpu_kernels
from atom.models.cpu.kernels import CpuKernels

__all__ = ["CpuKernels", "cpu_kernels"]
