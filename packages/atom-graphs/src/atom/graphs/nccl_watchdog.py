"""Waiting out NCCL's watchdog before a recording.

A collective recorded into a graph joins its NCCL stream into the capture. Had an eager collective been
pending on that stream, the watchdog thread's poll of it would touch a stream in capture and invalidate the
recording. Synchronising the device finishes the collective; only the watchdog itself takes it off its list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterable


class _WaitsForWorks(Protocol):
    def _wait_for_pending_works(self) -> None: ...


def drain_nccl_works() -> int:
    """Returns once no process group's watchdog has an eager collective left to poll; says how many it waited
    for.

    Nothing to do, and nothing done, without an initialised process group on a device.
    """
    if not dist.is_available() or not dist.is_initialized() or not torch.cuda.is_available():
        return 0
    backends = list(_nccl_backends(dist.distributed_c10d._world.pg_map))
    if backends:
        torch.cuda.synchronize()
    for backend in backends:
        backend._wait_for_pending_works()
    return len(backends)


def _nccl_backends(groups: Iterable[Any]) -> Iterable[_WaitsForWorks]:
    """The groups' device backends that poll from a thread of their own (NCCL, RCCL)."""
    for group in groups:
        try:
            backend = group._get_backend(torch.device("cuda"))
        except RuntimeError:  # a group without a device backend, such as gloo's
            continue
        if hasattr(backend, "_wait_for_pending_works"):
            yield cast("_WaitsForWorks", backend)
