"""RoPE scaling from GGUF metadata, in Hugging Face's terms.

GGUF states linear and YaRN scaling as metadata. Llama 3's scaling it stores as a tensor, one divisor a
frequency, computed by the converter from the four numbers that `config.json` has; those are recovered here
and checked.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from atom.models.checkpoint.gguf_fields import GGUFFields, shortest
from atom.models.checkpoint.gguf_names import ROPE_FACTORS
from atom.models.checkpoint.names import shown
from atom.models.errors import CorruptCheckpointError, UnsupportedCheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOLERANCE = 1e-4  # relative; the stored divisors are float32
_PUBLISHED = (1.0, 4.0, 8192)  # low and high frequency factor, original context, of every released model
_PUBLISHED_FACTORS = (8.0, 32.0)


def rope_scaling(
    fields: GGUFFields, *, theta: float, rotary_dim: int, context: int, factors: np.ndarray | None
) -> dict[str, Any] | None:
    """The `rope_scaling` object, None if positions are not scaled.

    Args:
        fields: the metadata.
        theta: base of the frequencies.
        rotary_dim: how many of a head's dimensions rotate.
        context: `max_position_embeddings`.
        factors: float32 `[rotary_dim / 2]` divisors, for a file that stores them.

    Raises:
        CorruptCheckpointError: a value is no number.
        UnsupportedCheckpointError: a kind of scaling that is not known here.
    """
    kind = fields.get("rope.scaling.type", "none")
    if factors is not None:
        if kind != "none":
            raise UnsupportedCheckpointError(
                f"{fields.path}: RoPE scaling of type {shown(kind)} together with tensor {ROPE_FACTORS!r}"
            )
        return _llama3(fields, theta=theta, rotary_dim=rotary_dim, context=context, factors=factors)
    if kind == "none":
        # Files from before there was a type say only how much.
        factor = fields.number("rope.scale_linear", default=1.0)
        return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}
    if kind == "linear":
        return {"rope_type": "linear", "factor": fields.number("rope.scaling.factor")}
    if kind == "yarn":
        return _yarn(fields, context)
    raise UnsupportedCheckpointError(
        f"{fields.path}: RoPE scaling of type {shown(kind)}; supported are none, linear, yarn, and Llama "
        "3's as a tensor"
    )


def _yarn(fields: GGUFFields, context: int) -> dict[str, Any]:
    factor = fields.number("rope.scaling.factor")
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": fields.count(
            "rope.scaling.original_context_length", default=max(1, int(context / factor))
        ),
    }
    for name in ("beta_fast", "beta_slow"):
        if fields.get(f"rope.scaling.yarn_{name}") is not None:
            scaling[name] = fields.number(f"rope.scaling.yarn_{name}")
    attention = fields.number("rope.scaling.attn_factor", default=1.0)
    attention *= fields.number("rope.scaling.yarn_attn_factor", default=1.0)
    if attention != 1.0:
        # GGUF multiplies YaRN's own temperature by it; Hugging Face's field replaces the temperature.
        scaling["attention_factor"] = attention * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
    for name, neutral in (("yarn_ext_factor", 1.0), ("yarn_log_multiplier", 0.0)):
        value = fields.get(f"rope.scaling.{name}", neutral)
        if value != neutral:
            raise UnsupportedCheckpointError(
                f"{fields.path}: {fields.key(f'rope.scaling.{name}')} is {shown(value)}, only {neutral} is "
                "supported"
            )
    return scaling


def _llama3(
    fields: GGUFFields, *, theta: float, rotary_dim: int, context: int, factors: np.ndarray
) -> dict[str, Any] | None:
    if factors.shape != (rotary_dim // 2,) or not np.isfinite(factors).all() or factors.min() <= 0:
        raise CorruptCheckpointError(
            f"{fields.path}: tensor {ROPE_FACTORS!r} is {list(factors.shape)}, expected {rotary_dim // 2} "
            "positive numbers"
        )
    divisors = factors.astype(np.float64)
    if np.allclose(divisors, 1.0, rtol=_TOLERANCE):
        return None
    wavelengths = rope_wavelengths(theta, rotary_dim)
    for factor, low, high, original in _llama3_candidates(divisors, wavelengths, context):
        recomputed = llama3_divisors(wavelengths, factor=factor, low=low, high=high, original=original)
        if np.allclose(recomputed, divisors, rtol=_TOLERANCE, atol=0.0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise UnsupportedCheckpointError(f"{fields.path}: tensor {ROPE_FACTORS!r} follows no known RoPE scaling")


def rope_wavelengths(theta: float, rotary_dim: int) -> np.ndarray:
    """Tokens a full turn takes, float64 `[rotary_dim / 2]`, ascending."""
    result: np.ndarray = 2 * np.pi * theta ** (np.arange(0, rotary_dim, 2) / rotary_dim)
    return result


def llama3_divisors(
    wavelengths: np.ndarray, *, factor: float, low: float, high: float, original: int
) -> np.ndarray:
    """What Llama 3 divides each frequency by.

    1 for wavelengths below `original / high`, `factor` above `original / low`, and between them the
    reciprocal of a blend that is linear in `original / wavelength`.
    """
    blend = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    result: np.ndarray = 1.0 / ((1.0 - blend) / factor + blend)
    return result


def _llama3_candidates(
    divisors: np.ndarray, wavelengths: np.ndarray, context: int
) -> Iterator[tuple[float, float, float, int]]:
    """Settings to try, as (factor, low, high, original context): the published ones, then a fit."""
    largest = shortest(divisors.max())
    low, high, original = _PUBLISHED
    for factor in (largest, *_PUBLISHED_FACTORS):
        for guess in (original, context, round(context / factor)):
            yield factor, low, high, guess
    line = _blend_line(largest, divisors, 1.0 / wavelengths)
    if line is not None:
        slope, offset = line
        # Only original / (high - low) and low / (high - low) matter, so the original context may be any.
        width = original / slope
        yield largest, -offset * width, (1.0 - offset) * width, original


def _blend_line(factor: float, divisors: np.ndarray, frequencies: np.ndarray) -> tuple[float, float] | None:
    """Slope and offset of the blend over frequency (turns a token), None if the divisors do not tell."""
    if factor <= 1.0:
        return None
    blend = (1.0 / divisors - 1.0 / factor) / (1.0 - 1.0 / factor)
    between = (blend > _TOLERANCE) & (blend < 1.0 - _TOLERANCE)
    if between.sum() >= 2:
        slope, offset = np.polyfit(frequencies[between], blend[between], 1)
        return (float(slope), float(offset)) if slope > 0 else None
    # At most one frequency tells where the line is: draw it steep enough that its neighbours stay plain.
    kept = frequencies[blend >= 1.0 - _TOLERANCE].min(initial=np.inf)
    scaled = frequencies[blend <= _TOLERANCE].max(initial=0.0)
    if not scaled < kept:
        return None
    if between.any():
        at, value = frequencies[between][0], blend[between][0]
        if not scaled < at < kept:
            return None
        slope = max((1.0 - value) / (kept - at), value / (at - scaled))
        return float(slope), float(value - slope * at)
    if not np.isfinite(kept):
        return None
    slope = 1.0 / (kept - scaled)
    return float(slope), float(-slope * scaled)
