"""How one request wants its tokens chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence  # noqa: TC003  resolved by those who read the fields
from dataclasses import dataclass, field

from atom.runner.errors import SamplingParamsError


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """A request's sampling settings.

    Filters apply in this order: repetition penalty, temperature, top-k, top-p, min-p.

    Raises:
        SamplingParamsError: a field is out of range; the message names it, its value and what is allowed.
    """

    temperature: float = 0.0
    """Divides the logits; 0 takes the most likely token."""
    top_k: int = 0
    """Keep only the `k` most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the most likely tokens whose probabilities first reach this sum; 1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one's probability; 0 drops none."""
    repetition_penalty: float = 1.0
    """Makes tokens of the prompt and the answer so far less likely when above 1, more likely below."""
    seed: int | None = None
    """Makes this request's tokens reproducible whatever runs beside it; None draws a fresh seed."""
    max_tokens: int = 128
    """Most tokens to generate."""
    stop: Sequence[str] = field(default=())
    """Strings that end the answer; the string itself is not part of the text."""
    stop_token_ids: Sequence[int] = field(default=())
    """Tokens that end the answer, beside the checkpoint's own end tokens."""
    ignore_eos: bool = False
    """Go on past the checkpoint's end tokens; `stop` and `stop_token_ids` still hold."""

    def __post_init__(self) -> None:
        for name, check, allowed in _RULES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not check(value):
                raise SamplingParamsError(f"{name}={value!r}: must be {allowed}")
        for name in ("top_k", "max_tokens"):
            if not isinstance(getattr(self, name), int):
                raise SamplingParamsError(f"{name}={getattr(self, name)!r}: must be a whole number")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise SamplingParamsError(f"seed={self.seed!r}: must be a whole number or None")
        if not isinstance(self.ignore_eos, bool):
            raise SamplingParamsError(f"ignore_eos={self.ignore_eos!r}: must be true or false")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not all(isinstance(text, str) and text for text in stop):
            raise SamplingParamsError(f"stop={self.stop!r}: must be non-empty strings")
        ids = tuple(self.stop_token_ids)
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise SamplingParamsError(
                f"stop_token_ids={self.stop_token_ids!r}: must be token ids, 0 or above"
            )
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", ids)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0


_RULES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("temperature", lambda v: v >= 0 and math.isfinite(v), "0 or a positive number"),
    ("top_k", lambda v: v >= 0, "0 (keep all) or a positive whole number"),
    ("top_p", lambda v: 0 < v <= 1, "above 0 and at most 1"),
    ("min_p", lambda v: 0 <= v <= 1, "between 0 and 1"),
    ("repetition_penalty", lambda v: v > 0 and math.isfinite(v), "a positive number"),
    ("max_tokens", lambda v: v >= 1, "at least 1"),
)
