"""Rotary frequencies of each kind of position scaling, in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from atom.models.layers.errors import LayerArgumentError

Scaling = Mapping[str, Any]
"""A `rope_scaling` object in Hugging Face's names; `rope_type` says which kind."""


def rotary_frequencies(
    rotary_dim: int, theta: float, scaling: Scaling | None, *, max_position: int
) -> tuple[torch.Tensor, float]:
    """Radians a position turns each pair of dimensions by, and what cosine and sine are multiplied with.

    Args:
        rotary_dim: dimensions of a head that rotate; even.
        theta: base of the frequencies.
        scaling: None for plain positions.
        max_position: the checkpoint's context in tokens, where `scaling` names no original one.

    Returns:
        float32 `[rotary_dim / 2]`, and the factor.

    Raises:
        LayerArgumentError: an odd `rotary_dim`, an unknown kind, or a setting that is absent or no number.
    """
    if rotary_dim < 2 or rotary_dim % 2:
        raise LayerArgumentError(f"rotary dimension is {rotary_dim}, expected an even number above 0")
    # This very order of operations: another rounds differently, and far positions multiply the difference.
    plain = 1.0 / theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
    kind = "default" if scaling is None else scaling.get("rope_type")
    if scaling is None or kind == "default":
        return plain, 1.0
    if kind not in _KINDS:
        raise LayerArgumentError(
            f"rope_scaling has rope_type {kind!r}, supported are default, {', '.join(sorted(_KINDS))}"
        )
    return _KINDS[kind](plain, theta, scaling, max_position)


def _linear(
    plain: torch.Tensor, theta: float, scaling: Scaling, max_position: int
) -> tuple[torch.Tensor, float]:
    """Positions divided by a factor."""
    return plain / _number(scaling, "factor"), 1.0


def _llama3(
    plain: torch.Tensor, theta: float, scaling: Scaling, max_position: int
) -> tuple[torch.Tensor, float]:
    """Llama 3.1: slow frequencies are divided by a factor, fast ones kept, those between blended."""
    factor = _number(scaling, "factor")
    low, high = _number(scaling, "low_freq_factor"), _number(scaling, "high_freq_factor")
    original = _number(scaling, "original_max_position_embeddings", max_position)
    if high <= low:
        raise LayerArgumentError(f"rope_scaling has high_freq_factor {high}, expected more than {low}")
    turns = original * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return plain * (kept + (1.0 - kept) / factor), 1.0


def _yarn(
    plain: torch.Tensor, theta: float, scaling: Scaling, max_position: int
) -> tuple[torch.Tensor, float]:
    """YaRN (arXiv 2309.00071): frequencies that turn often are kept, those that hardly turn are divided."""
    original = _number(scaling, "original_max_position_embeddings", max_position)
    factor = _number(scaling, "factor", max_position / original)
    pairs = plain.shape[0]

    def pair_that_turns(times: float) -> float:
        """Index of the pair that makes so many turns over the original context."""
        return pairs * math.log(original / (times * 2 * math.pi)) / math.log(theta)

    first = pair_that_turns(_number(scaling, "beta_fast", 32.0))
    last = pair_that_turns(_number(scaling, "beta_slow", 1.0))
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    width = last - first if last != first else 0.001  # a step, where both ends meet
    divided = ((torch.arange(pairs, dtype=torch.float32) - first) / width).clamp(0.0, 1.0)
    return plain * (1.0 - divided) + plain / factor * divided, _yarn_attention_factor(scaling, factor)


def _yarn_attention_factor(scaling: Scaling, factor: float) -> float:
    if scaling.get("attention_factor") is not None:
        return _number(scaling, "attention_factor")

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return temperature(_number(scaling, "mscale")) / temperature(_number(scaling, "mscale_all_dim"))
    return temperature(1.0)


def _number(scaling: Scaling, key: str, default: float | None = None) -> float:
    value = scaling.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise LayerArgumentError(
            f"rope_scaling {scaling.get('rope_type')!r} has {key} {value!r}, expected a positive number"
        )
    return float(value)


_KINDS: dict[str, Callable[[torch.Tensor, float, Scaling, int], tuple[torch.Tensor, float]]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
