"""The Triton kernels of a CUDA or HIP device, under the names of their torch twins."""

from __future__ import annotations

from atom.models.kernels.embedding import embedding
from atom.models.kernels.linear import linear
from atom.models.kernels.paged_decode import paged_decode
from atom.models.kernels.paged_prefill import paged_prefill
from atom.models.kernels.rms_norm import add_rms_norm, rms_norm
from atom.models.kernels.rotary_cache import rotary, rotary_and_cache, write_cache
from atom.models.kernels.sampling import greedy, sample
from atom.models.kernels.silu_mul import silu_mul
from atom.models.kernels.work_list import build_work_list

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
