"""A region: work that needs the host, between two segments of a recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Region:
    """What `@eager_region` marked."""

    name: str
    fn: Callable[..., Any]
    bucket_fixed: bool
    """Whether a request bucket fixes every launch in it, so that a request graph may hold it."""
