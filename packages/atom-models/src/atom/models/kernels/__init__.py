"""Kernels: a Triton family a file, each with a plain torch twin in `reference/`; this loads neither."""

from __future__ import annotations

from atom.models.kernels.attention_plan import DecodePlan, PrefillPlan, plan_decode, plan_prefill
from atom.models.kernels.errors import KernelArgumentError, KernelError
from atom.models.kernels.kernel_set import KernelSet, for_device
from atom.models.kernels.packed_weight import pack, unpack

__all__ = [
    "DecodePlan",
    "KernelArgumentError",
    "KernelError",
    "KernelSet",
    "PrefillPlan",
    "for_device",
    "pack",
    "plan_decode",
    "plan_prefill",
    "unpack",
]
