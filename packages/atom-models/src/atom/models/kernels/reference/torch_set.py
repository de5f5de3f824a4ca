"""The torch twins, under the names of the Triton kernels; they serve the CPU and every other device."""

from __future__ import annotations

from atom.models.kernels.reference.embedding import embedding
from atom.models.kernels.reference.linear import linear
from atom.models.kernels.reference.paged_decode import paged_decode
from atom.models.kernels.reference.paged_prefill import paged_prefill
from atom.models.kernels.reference.rms_norm import add_rms_norm, rms_norm
from atom.models.kernels.reference.rotary_cache import rotary, rotary_and_cache, write_cache
from atom.models.kernels.reference.sampling import greedy, sample
from atom.models.kernels.reference.silu_mul import silu_mul
from atom.models.kernels.reference.work_list import build_work_list

__all__ = [
    "add_rms_norm",
    "build_work_list",
    "embedding",
    "greedy",
    "linear",
    "paged_decode",
    "paged_prefill",
    "rms_norm",
    "rotary",
    "rotary_and_cache",
    "sample",
    "silu_mul",
    "write_cache",
]
