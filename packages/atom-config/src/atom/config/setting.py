"""What a dataclass field says about itself beside its type and default: help, kind, place in cache keys."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atom.config.kinds import Kind

ABOUT = "atom.config"


@dataclass(frozen=True)
class KeyDecision:
    """Whether a field is part of compile-cache keys, and why not where it is not."""

    counts: bool
    reason: str = ""


IN_KEY = KeyDecision(counts=True)
"""A different value may give different compiled code."""


def outside_key(reason: str) -> KeyDecision:
    """The declaration that a field cannot change compiled code; `reason` says why."""
    return KeyDecision(counts=False, reason=reason)


@dataclass(frozen=True)
class About:
    """The description of one field; `key` is None while nobody has decided, which counts as `IN_KEY`."""

    help: str
    kind: Kind
    key: KeyDecision | None
    flag: str | None

    @property
    def in_key(self) -> bool:
        return self.key is None or self.key.counts


def about(
    help_text: str, kind: Kind, *, key: KeyDecision | None = None, flag: str | None = None
) -> Mapping[str, Any]:
    """Metadata for `dataclasses.field`.

    Args:
        help_text: what the setting does, for `--help` and the configuration page.
        kind: which values pass.
        key: `IN_KEY` or `outside_key(why)`; undecided fields count as in the key, and a test names them.
        flag: the command-line flag where it is not the field's name with dashes; "" for no flag.
    """
    return {ABOUT: About(help_text, kind, key, flag)}


def about_field(field: Field[Any]) -> About | None:
    """What a field says about itself; None for one without a description."""
    found = field.metadata.get(ABOUT)
    return found if isinstance(found, About) else None


def default_of(field: Field[Any]) -> Any:
    """A field's default, freshly made where it is a factory; `dataclasses.MISSING` for a required field."""
    return field.default_factory() if field.default_factory is not MISSING else field.default
