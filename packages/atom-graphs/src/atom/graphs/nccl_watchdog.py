"""Waiting out NCCL's watchdog before a recording.

A collective recorded into a graph joins its NCCL stream into the capture. Had an eager collective been
pending on that stream, the watchdog thread's poll of it would touch a stream in capture and invalidate the
recording. Synchronising the device finishes the collective; only the watchdog itself takes it off its list.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def drain_nccl_works() -> int:
    """Returns once no process group's watchdog has an eager collective left to poll; says how many groups
    wait.

    Nothing to do, and nothing done, without an initialised process group on a device.
    """
    if not dist.is_available() or not dist.is_initialized() or not torch.cuda.is_available():
        return 0
    # RCCL goes by NCCL's name; gloo has no watchdog.
    groups = [g for g in dist.distributed_c10d._world.pg_map if g.name().lower() == "nccl"]
    if groups:
        torch.cuda.synchronize()
    for group in groups:
        group._wait_for_pending_works()
    return len(groups)
