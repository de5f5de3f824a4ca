"""A linear layer's product by the fastest way there is, settled by measurement.

Which of torch's own product, the GEMV and the skinny tiles is fastest depends on rows, shape, dtype and
device, so it is measured rather than guessed: inside `measuring()`, the warm-up that comes before a
recording, the first product of each kind times all candidates and the winner is remembered for the process.
Outside it, an unknown product takes the default: the GEMV for one row, torch for more. Nothing is measured
while a stream is captured.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from atom.models.kernels.errors import KernelError
from atom.models.kernels.gemv import GemvConfig, gemv
from atom.models.kernels.graph_timer import time_in_graph
from atom.models.kernels.rms_norm import rms_norm
from atom.models.kernels.silu_mul import silu_mul
from atom.models.kernels.skinny_gemm import MOST_ROWS, SkinnyConfig, skinny_gemm

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TORCH", "Choice", "LinearChooser", "ProductKey", "chooser", "linear", "measuring"]

TORCH = "torch"
"""The choice of torch's product, with the work around it as separate kernels."""

Choice = str | GemvConfig | SkinnyConfig

_MUST_WIN_BY = 0.98  # another way than torch's has to be measurably faster


@dataclass(frozen=True, slots=True)
class ProductKey:
    """What the choice depends on. `around` names the fused work: those of norm, silu, residual asked for."""

    rows: int
    n: int
    k: int
    dtype: torch.dtype
    device: torch.device
    around: tuple[str, ...] = ()


@dataclass
class LinearChooser:
    """Remembers the fastest way for each product it has measured."""

    choices: dict[ProductKey, Choice] = field(default_factory=dict)
    milliseconds: dict[ProductKey, dict[Choice, float]] = field(default_factory=dict)
    measures: bool = False

    def choose(self, key: ProductKey) -> Choice:
        """The measured choice, or the default."""
        found = self.choices.get(key)
        return found if found is not None else _default(key)

    def measure(self, key: ProductKey) -> Choice:
        """Time every candidate on random numbers of the key's shape, unless that was done; returns the
        fastest.

        Raises KernelError while a stream is captured: timing launches would be recorded instead of run.
        """
        if key in self.choices:
            return self.choices[key]
        if torch.cuda.is_current_stream_capturing():
            raise KernelError(
                "linear: cannot measure while a graph is captured; measure in the warm-up before it"
            )
        times = {candidate: _time(key, candidate) for candidate in candidates(key)}
        fastest = min(times, key=times.__getitem__)
        if times[fastest] > _MUST_WIN_BY * times[TORCH]:
            fastest = TORCH
        self.milliseconds[key] = times
        self.choices[key] = fastest
        return fastest


chooser = LinearChooser()
"""The process's choices."""


@contextmanager
def measuring() -> Iterator[None]:
    """Within it, a product of a kind not seen before is measured before it is computed."""
    before, chooser.measures = chooser.measures, True
    try:
        yield
    finally:
        chooser.measures = before


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    norm_weight: torch.Tensor | None = None,
    eps: float = 0.0,
    silu: bool = False,
) -> torch.Tensor:
    """`x @ weight.T` of `[rows, k]` and `[n, k]`; new `[rows, n]`.

    Around it, in this order: `rms_norm(x, norm_weight, eps)` before; SiLU of the first half of the outputs
    times the second (`silu`, weight `[2n, k]`), `+ bias`, `+ residual` after. What is fused keeps float32 in
    between, so its last bits differ from the separate operations'.
    """
    key = _key(x, weight, residual, norm_weight, silu)
    choice = chooser.measure(key) if chooser.measures else chooser.choose(key)
    return _compute(choice, x, weight, bias, residual, norm_weight, eps, silu)


def candidates(key: ProductKey) -> list[Choice]:
    """The ways worth timing for a product: torch's first."""
    found: list[Choice] = [TORCH]
    if key.rows == 1:
        found += [GemvConfig(4, 1024, 4), GemvConfig(2, 1024, 4), GemvConfig(4, 512, 4)]
    elif key.rows <= MOST_ROWS:
        whole_sum = "norm" in key.around or "silu" in key.around  # these cannot be split along k
        found += [config for config in _SKINNY[_row_block(key.rows)] if config.split_k == 1 or not whole_sum]
    return found


_SKINNY: dict[int, list[SkinnyConfig]] = {
    16: [
        SkinnyConfig(block_n=32, block_k=256, num_stages=4),
        SkinnyConfig(block_n=16, block_k=256, num_stages=5),
        SkinnyConfig(block_n=64, block_k=128, num_stages=5),
        SkinnyConfig(block_n=64, block_k=128, num_stages=5, split_k=4),
    ],
    32: [
        SkinnyConfig(block_n=32, block_k=256, num_stages=4),
        SkinnyConfig(block_n=64, block_k=128, num_stages=5),
        SkinnyConfig(block_n=64, block_k=128, num_stages=5, split_k=4),
        SkinnyConfig(block_n=64, block_k=128, num_stages=4, weight_first=True),
    ],
    64: [
        SkinnyConfig(block_n=64, block_k=128, num_stages=4),
        SkinnyConfig(block_n=64, block_k=128, num_stages=4, split_k=4),
        SkinnyConfig(block_n=128, block_k=64, num_stages=4, split_k=4),
        SkinnyConfig(block_n=64, block_k=128, num_stages=4, weight_first=True),
    ],
}


def _row_block(rows: int) -> int:
    return 16 if rows <= 16 else 32 if rows <= 32 else 64


def _default(key: ProductKey) -> Choice:
    return GemvConfig() if key.rows == 1 else TORCH


def _key(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    silu: bool,
) -> ProductKey:
    around: tuple[str, ...] = ()
    if residual is not None or norm_weight is not None or silu:
        given = {"norm": norm_weight is not None, "silu": silu, "residual": residual is not None}
        around = tuple(name for name, there in given.items() if there)
    return ProductKey(x.shape[0], weight.shape[0], weight.shape[1], x.dtype, x.device, around)


def _compute(
    choice: Choice,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    silu: bool,
) -> torch.Tensor:
    if isinstance(choice, GemvConfig):
        return gemv(
            x,
            weight,
            bias=bias,
            residual=residual,
            norm_weight=norm_weight,
            eps=eps,
            silu=silu,
            config=choice,
        )
    if isinstance(choice, SkinnyConfig):
        return skinny_gemm(
            x,
            weight,
            bias=bias,
            residual=residual,
            norm_weight=norm_weight,
            eps=eps,
            silu=silu,
            config=choice,
        )
    if norm_weight is not None:
        x = rms_norm(x, norm_weight, eps)
    product = F.linear(x, weight, bias if not silu else None)
    if silu:
        product = silu_mul(product)
    return product if residual is None else product + residual


def _time(key: ProductKey, candidate: Choice) -> float:
    """Milliseconds of one product, its weight read from memory and not from a cache."""
    outputs = key.n // 2 if "silu" in key.around else key.n
    x = torch.randn(key.rows, key.k, dtype=key.dtype, device=key.device)
    norm_weight = torch.ones_like(x[0]) if "norm" in key.around else None
    residual = x.new_zeros(key.rows, outputs) if "residual" in key.around else None
    copies = _copies_past_cache(key)
    weights = [torch.empty(key.n, key.k, dtype=key.dtype, device=key.device) for _ in range(copies)]
    for weight in weights:
        weight.normal_(std=0.02)

    def run() -> None:
        for weight in weights:
            _compute(candidate, x, weight, None, residual, norm_weight, 1e-5, "silu" in key.around)

    return time_in_graph(run) / copies


def _copies_past_cache(key: ProductKey) -> int:
    """Weights to rotate through so that none is still in the device's cache when its turn comes again."""
    size = key.n * key.k * key.dtype.itemsize
    cache = torch.cuda.get_device_properties(key.device).L2_cache_size
    return max(1, min(16, -(-2 * cache // size)))
