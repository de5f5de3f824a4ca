"""Drafting tokens ahead and verifying them in one step."""

from __future__ import annotations

from dataclasses import dataclass, field

from atom.config.kinds import Integer, Kind
from atom.config.setting import IN_KEY, about
from atom.config.settings import Settings


@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig(Settings):
    """Who drafts, and how many tokens."""

    method: str = field(
        default="mtp",
        metadata=about(
            "Name of the drafter: mtp for the prediction layers of the checkpoint, else an installed one.",
            Kind(),
            key=IN_KEY,
            flag="--speculative-method",
        ),
    )
    num_speculative_tokens: int = field(
        default=1,
        metadata=about("Tokens drafted for each request and step.", Integer(at_most=64), key=IN_KEY),
    )
    model: str | None = field(
        default=None,
        metadata=about(
            "Path of the drafting model. none: the drafter is part of the checkpoint.",
            Kind(optional=True),
            key=IN_KEY,
            flag="--speculative-model",
        ),
    )

    @property
    def mtp_k(self) -> int:
        """The guide's name for `num_speculative_tokens`."""
        return self.num_speculative_tokens
