"""Ops that a tape calls without torch: addresses never change in a recording, so neither do arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    Binder = Callable[[tuple[Any, ...], Sequence[torch.Tensor]], Callable[[], object] | None]

_binders: dict[Any, Binder] = {}


def bind_replays(op: Any, binder: Binder) -> None:
    """Let replays of `op`, an `OpOverload`, skip the dispatcher.

    While recording, once the op has run, `binder(args, results)` is given its arguments and where its results
    lie. It returns a call that computes them again, in place, at those addresses; or None to have the op
    itself replayed. The tape keeps the tensors alive for as long as it keeps the call.
    """
    _binders[op] = binder


def bound(op: Any, args: tuple[Any, ...], results: Sequence[torch.Tensor]) -> Callable[[], object] | None:
    """The call that `op` is replayed by, None without a binder or where it declines."""
    binder = _binders.get(op)
    return None if binder is None else binder(args, results)
