"""A linear layer's product by the fastest way there is, settled by measurement.

Which of torch's own product, the GEMV and the skinny tiles is fastest depends on rows, shape, dtype and
device, so it is measured rather than guessed: inside `measuring()`, the warm-up that comes before a
recording, the first product of each kind times all candidates and the winner is remembered for the process.
Outside it, an unknown product takes the default: the GEMV for one row, torch for more. Nothing is measured
while a stream is captured.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from triton.runtime.errors import OutOfResources

from atom.models.kernels.errors import KernelArgumentError, KernelError
from atom.models.kernels.gemv import GemvConfig, gemv
from atom.models.kernels.graph_timer import time_in_graph
from atom.models.kernels.packed_weight import pack
from atom.models.kernels.rms_norm import rms_norm
from atom.models.kernels.silu_mul import silu_mul
from atom.models.kernels.skinny_gemm import MOST_ROWS, SkinnyConfig, skinny_gemm
from atom.models.kernels.tiling import ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TORCH", "Choice", "LinearChooser", "ProductKey", "candidates", "chooser", "linear", "measuring"]

_MUST_WIN_BY = 0.98  # another way than torch's has to be measurably faster


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to compute a product: torch's (no config), or a kernel's; `packed` reads the packed weight."""

    config: GemvConfig | SkinnyConfig | None = None
    packed: bool = False
    fused_norm: bool = False


TORCH = Choice()


@dataclass(frozen=True, slots=True)
class ProductKey:
    """What the choice depends on.

    `around` names the work around the product that was asked for (of norm, silu, residual), `tile` the packed
    weight's tile if there is one.
    """

    rows: int
    n: int
    k: int
    dtype: torch.dtype
    device: torch.device
    around: tuple[str, ...] = ()
    tile: tuple[int, int] | None = None


@dataclass
class LinearChooser:
    """Remembers the fastest way for each product it has measured, each time a median over `repeats`."""

    choices: dict[ProductKey, Choice] = field(default_factory=dict)
    milliseconds: dict[ProductKey, dict[Choice, float]] = field(default_factory=dict)
    measures: bool = False
    repeats: int = 20

    def choose(self, key: ProductKey) -> Choice:
        """The measured choice, or the default."""
        found = self.choices.get(key)
        return found if found is not None else _default(key)

    def measure(self, key: ProductKey) -> Choice:
        """Time every candidate on random numbers of the key's shape, unless that was done; the fastest.

        Raises KernelError while a stream is captured: timing launches would be recorded instead of run.
        """
        if key in self.choices:
            return self.choices[key]
        if torch.cuda.is_current_stream_capturing():
            raise KernelError(
                "linear: cannot measure while a graph is captured; measure in the warm-up before it"
            )
        times = _time(key, candidates(key), self.repeats)
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
    tiles: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    norm_weight: torch.Tensor | None = None,
    eps: float = 0.0,
    silu: bool = False,
) -> torch.Tensor:
    """`x @ weight.T` of `[rows, k]` and `[n, k]`; new `[rows, n]`.

    Around it, in this order: `rms_norm(x, norm_weight, eps)` before; SiLU of the first half of the outputs
    times the second (`silu`, weight `[2n, k]`), `+ bias`, `+ residual` after. What is fused keeps float32 in
    between, so its last bits differ from the separate operations'. `tiles` is the same weight packed, for few
    rows.
    """
    if silu and bias is not None:
        raise KernelArgumentError("linear: silu takes no bias")
    key = _key(x, weight, tiles, residual, norm_weight, silu)
    choice = chooser.measure(key) if chooser.measures else chooser.choose(key)
    return _compute(choice, x, weight, tiles, bias, residual, norm_weight, eps, silu)


def candidates(key: ProductKey) -> list[Choice]:
    """The ways worth timing for a product: torch's first."""
    found = [TORCH]
    if key.rows == 1:
        for config in _GEMV:
            found.append(Choice(config))
            if "norm" in key.around:
                found.append(Choice(config, fused_norm=True))
    elif key.rows <= MOST_ROWS:
        silu = "silu" in key.around
        found += [Choice(config) for config in _fitting(_SKINNY[_row_block(key.rows)], silu)]
        if key.tile is not None:
            found += [Choice(config, packed=True) for config in _fitting(_PACKED, silu)]
    return found


_GEMV = [GemvConfig(2, 1024, 4), GemvConfig(2, 2048, 8), GemvConfig(4, 1024, 4), GemvConfig(4, 2048, 8)]
_PACKED = [
    SkinnyConfig(num_stages=5, weight_first=True),
    SkinnyConfig(num_stages=5, weight_first=True, split_k=2),
    SkinnyConfig(num_stages=5),
]
_SKINNY = {
    16: [
        SkinnyConfig(64, 128, num_stages=5, weight_first=True),
        SkinnyConfig(64, 128, num_stages=5, weight_first=True, split_k=2),
        SkinnyConfig(128, 64, num_stages=5, weight_first=True),
        SkinnyConfig(32, 128, num_stages=6),
    ],
    32: [
        SkinnyConfig(64, 128, num_stages=5, weight_first=True),
        SkinnyConfig(64, 128, num_stages=5, weight_first=True, split_k=2),
        SkinnyConfig(128, 64, num_stages=5, weight_first=True),
        SkinnyConfig(32, 128, num_stages=6),
    ],
    64: [
        SkinnyConfig(64, 128, num_stages=5),
        SkinnyConfig(64, 128, num_stages=5, split_k=2),
        SkinnyConfig(128, 64, num_stages=5),
        SkinnyConfig(32, 128, num_stages=6),
    ],
}


def _fitting(configs: list[SkinnyConfig], silu: bool) -> list[SkinnyConfig]:
    """The configs as this product and device can run them.

    SiLU needs whole sums, so k is not split, and streams two weight tiles a stage, so there is room for fewer
    stages. AMD devices have 64 KiB of local memory for them, a third of the NVIDIA ones these are tuned on.
    """
    kept = [config for config in configs if config.split_k == 1 or not silu]
    if torch.version.hip is not None:
        return [replace(config, num_stages=2) for config in kept]
    return [replace(config, num_stages=config.num_stages - 2) for config in kept] if silu else kept


def _row_block(rows: int) -> int:
    return 16 if rows <= 16 else 32 if rows <= 32 else 64


def _default(key: ProductKey) -> Choice:
    return Choice(GemvConfig()) if key.rows == 1 else TORCH


def _key(
    x: torch.Tensor,
    weight: torch.Tensor,
    tiles: torch.Tensor | None,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    silu: bool,
) -> ProductKey:
    around: tuple[str, ...] = ()
    if residual is not None or norm_weight is not None or silu:
        given = {"norm": norm_weight is not None, "silu": silu, "residual": residual is not None}
        around = tuple(name for name, there in given.items() if there)
    tile = None if tiles is None else (tiles.shape[2], tiles.shape[3])
    return ProductKey(x.shape[0], weight.shape[0], weight.shape[1], x.dtype, x.device, around, tile)


def _compute(
    choice: Choice,
    x: torch.Tensor,
    weight: torch.Tensor,
    tiles: torch.Tensor | None,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    silu: bool,
) -> torch.Tensor:
    if norm_weight is not None and not choice.fused_norm:
        x, norm_weight = rms_norm(x, norm_weight, eps), None
    config = choice.config
    if isinstance(config, GemvConfig):
        return gemv(
            x,
            weight,
            bias=bias,
            residual=residual,
            norm_weight=norm_weight,
            eps=eps,
            silu=silu,
            config=config,
        )
    if isinstance(config, SkinnyConfig):
        matrix = tiles if choice.packed and tiles is not None else weight
        return skinny_gemm(x, matrix, bias=bias, residual=residual, silu=silu, config=config)
    product = silu_mul(F.linear(x, weight)) if silu else F.linear(x, weight, bias)
    return product if residual is None else product + residual


def _time(key: ProductKey, ways: list[Choice], repeats: int) -> dict[Choice, float]:
    """Milliseconds of a product each way, its weight read from memory and not from a cache."""
    x = torch.randn(key.rows, key.k, dtype=key.dtype, device=key.device)
    outputs = key.n // 2 if "silu" in key.around else key.n
    norm_weight = torch.ones_like(x[0]) if "norm" in key.around else None
    residual = x.new_zeros(key.rows, outputs) if "residual" in key.around else None
    weights = [x.new_empty(key.n, key.k).normal_(std=0.02) for _ in range(_copies_past_cache(key))]
    tiles = [None if key.tile is None else pack(weight, *key.tile) for weight in weights]
    # starting a graph takes as long as a small product: read a gibibyte a graph
    rounds = ceil_div(2**30, len(weights) * weights[0].nbytes)

    def milliseconds(way: Choice) -> float:
        def run() -> None:
            for _ in range(rounds):
                for weight, packed in zip(weights, tiles, strict=True):
                    _compute(way, x, weight, packed, None, residual, norm_weight, 1e-5, "silu" in key.around)

        return time_in_graph(run, repeats=repeats) / (rounds * len(weights))

    times = {}
    for way in ways:
        try:
            times[way] = milliseconds(way)
        except OutOfResources:  # a tile too large for this device's local memory
            continue
    return times


def _copies_past_cache(key: ProductKey) -> int:
    """Weights to rotate through so that none is still in the device's cache when its turn comes again."""
    size = key.n * key.k * key.dtype.itemsize
    cache = torch.cuda.get_device_properties(key.device).L2_cache_size
    return max(1, min(16, ceil_div(2 * cache, size)))
