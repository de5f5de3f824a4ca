"""How one request wants its tokens chosen."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence  # noqa: TC003  resolved by those who read the fields
from dataclasses import dataclass, field
from typing import Any

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
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name, check, allowed in _RULES:
            value = getattr(self, name)
            if not check(value):
                raise SamplingParamsError(f"{name}={reprlib.repr(value)}: must be {allowed}")
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _all(values: Any, check: Callable[[Any], bool]) -> bool:
    return isinstance(values, list | tuple | set | frozenset) and all(map(check, values))


_LARGEST = 3.4e38
"""What the sampler's float32 holds; an integer beyond a float64 is compared like any other number."""
_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("temperature", lambda v: _is_number(v) and 0 <= v <= _LARGEST, "0 or a positive number up to 3.4e38"),
    ("top_k", lambda v: _is_whole(v) and 0 <= v < 2**63, "0 (keep all) or a positive whole number"),
    ("top_p", lambda v: _is_number(v) and 0 < v <= 1, "above 0 and at most 1"),
    ("min_p", lambda v: _is_number(v) and 0 <= v <= 1, "between 0 and 1"),
    ("repetition_penalty", lambda v: _is_number(v) and 0 < v <= _LARGEST, "a positive number up to 3.4e38"),
    ("seed", lambda v: v is None or _is_whole(v), "a whole number or None"),
    ("max_tokens", lambda v: _is_whole(v) and v >= 1, "at least 1 and a whole number"),
    ("stop", lambda v: _all(v, lambda text: isinstance(text, str) and text != ""), "non-empty strings"),
    ("stop_token_ids", lambda v: _all(v, lambda i: _is_whole(i) and i >= 0), "token ids, 0 or above"),
    ("ignore_eos", lambda v: isinstance(v, bool), "true or false"),
)
