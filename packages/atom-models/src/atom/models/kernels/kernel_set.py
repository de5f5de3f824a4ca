"""What a layer calls: one set of functions, Triton's on a CUDA or HIP device, torch's everywhere else."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from atom.models.kernels.attention_plan import DecodePlan, PrefillPlan

__all__ = ["KernelSet", "for_device"]


class KernelSet(Protocol):
    """The functions of a set; `triton_set` and `reference.torch_set` are the two there are.

    Shapes, dtypes and errors are described where the functions are: `rms_norm.py`, `paged_decode.py` and so
    on.
    """

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor: ...

    def embedding(self, ids: torch.Tensor, table: torch.Tensor, vocab_start: int = 0) -> torch.Tensor: ...

    def linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        tiles: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
        norm_weight: torch.Tensor | None = None,
        eps: float = 0.0,
        silu: bool = False,
    ) -> torch.Tensor: ...

    def rotary(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        *,
        interleaved: bool = False,
    ) -> None: ...

    def rotary_and_cache(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        *,
        interleaved: bool = False,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> None: ...

    def write_cache(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        *,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> None: ...

    def paged_decode(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
        out: torch.Tensor,
        *,
        scale: float,
        query_len: int = 1,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
        plan: DecodePlan | None = None,
    ) -> None: ...

    def build_work_list(
        self,
        cu_seqlens_q: torch.Tensor,
        seq_lens: torch.Tensor,
        rows: int,
        plan: PrefillPlan,
        work_list: torch.Tensor,
    ) -> None: ...

    def paged_prefill(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_tables: torch.Tensor,
        work_list: torch.Tensor,
        out: torch.Tensor,
        plan: PrefillPlan,
        *,
        scale: float,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> None: ...

    def greedy(self, logits: torch.Tensor) -> torch.Tensor: ...

    def sample(
        self,
        logits: torch.Tensor,
        *,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        min_p: torch.Tensor,
        seeds: torch.Tensor,
        steps: torch.Tensor,
    ) -> torch.Tensor: ...


@cache
def for_device(device: torch.device | str) -> KernelSet:
    """The set that is fastest on `device`; only the chosen one is imported."""
    kind = device.split(":")[0] if isinstance(device, str) else device.type
    if kind == "cuda" and importlib.util.find_spec("triton") is not None:
        from atom.models.kernels import triton_set

        return triton_set
    from atom.models.kernels.reference import torch_set

    return torch_set
