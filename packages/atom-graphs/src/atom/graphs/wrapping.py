"""Doing something before each call of a function that offers no hook."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def wrapped(owner: Any, name: str, before: Callable[..., None]) -> Iterator[None]:
    """Calls `before` with the arguments of every call of `owner.name` while the block runs."""
    original = getattr(owner, name)
    own = name in vars(owner)

    def call(*args: Any, **kwargs: Any) -> Any:
        before(*args, *kwargs.values())
        return original(*args, **kwargs)

    setattr(owner, name, call)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
