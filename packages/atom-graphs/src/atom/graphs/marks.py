"""The marks a model carries: where a recording breaks, what it must not look into, what it cannot freeze."""

from __future__ import annotations

import functools
import inspect
from threading import get_ident
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from atom.graphs import recorder
from atom.graphs.region import Region

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

P = ParamSpec("P")
R = TypeVar("R")


@overload
def eager_region(fn: Callable[P, R], /, *, bucket_fixed: bool = False) -> Callable[P, R]: ...
@overload
def eager_region(*, bucket_fixed: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def eager_region(
    fn: Callable[P, R] | None = None, /, *, bucket_fixed: bool = False
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Marks a function, method or custom-op implementation whose launches depend on host data.

    Outside of a recording it is a plain call. A token graph breaks there: the function runs eagerly at every
    replay, reading the live step's metadata, and its result reaches the next segment at the address it was
    recorded reading. Tensors, tuples, lists, dicts, dataclasses and None cross; every other argument is kept
    from the recording. A result that lies in an argument, or in a buffer the function keeps, costs no copy.

    Args:
        bucket_fixed: A request bucket fixes every launch in it (shapes from the bucket, lengths read from
            tensors and masked), so that a request graph may hold it without a break. Without this, a request
            graph refuses it.
    """
    if fn is None:
        return functools.partial(eager_region, bucket_fixed=bucket_fixed)
    region = Region(name=getattr(fn, "__qualname__", repr(fn)), fn=fn, bucket_fixed=bucket_fixed)

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        active = recorder.active
        if active is None or recorder.owner_thread != get_ident():
            return fn(*args, **kwargs)
        result: R = active.region(region, args, kwargs)
        return result

    # Schema inference of a custom op reads the signature, and would resolve string annotations in this
    # module.
    call.__signature__ = _resolved_signature(fn)  # type: ignore[attr-defined]
    call.__atom_region__ = region  # type: ignore[attr-defined]
    return call


def opaque_call(fn: Callable[P, R]) -> Callable[P, R]:
    """Marks a callable whose inside a tape cannot see: a compiled piece, a kernel launched by address.

    The tape records the call whole and makes it again at every replay; a device graph captures what it
    launches. `atom.compile` needs no import for this: whoever owns a compiled callable wraps it, or the
    callable itself asks the dispatch mode on top of torch's stack for a method `opaque_call(fn, args,
    kwargs)`, which the tape has.
    """

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        active = recorder.active
        if active is None or recorder.owner_thread != get_ident():
            return fn(*args, **kwargs)
        result: R = active.opaque(fn, args, kwargs)
        return result

    return call


def host_data(tensor: torch.Tensor) -> torch.Tensor:
    """Marks a tensor as data of the host, which a recording on the same device may read (`.item()`,
    `.tolist()`).

    What is read is frozen into the recording, as a device graph freezes what it reads from a CPU tensor.
    """
    tensor.__atom_host_data__ = True  # type: ignore[attr-defined]
    return tensor


def is_host_data(tensor: torch.Tensor) -> bool:
    """Whether `host_data` marked this tensor."""
    return getattr(tensor, "__atom_host_data__", False)


def region_of(fn: Callable[..., Any]) -> Region | None:
    """The region that `eager_region` made of `fn`, if it did."""
    return getattr(fn, "__atom_region__", None)


def _resolved_signature(fn: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(fn, eval_str=True)
    except Exception:  # an annotation only a type checker can resolve; schema inference would not get further
        return inspect.signature(fn)
