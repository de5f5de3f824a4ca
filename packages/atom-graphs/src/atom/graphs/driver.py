"""Three calls of the device driver that torch does not offer, or offers at more than twice the price."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

THREAD_LOCAL = 1
"""Capture mode: calls of other threads are none of the capture's business."""


def captured_nodes(stream: torch.cuda.Stream) -> int | None:
    """Nodes captured on `stream` since its capture began; None where the driver cannot be asked."""
    get_info, get_nodes = _function("StreamGetCaptureInfo_v2"), _function("GraphGetNodes")
    if get_info is None or get_nodes is None:
        return None
    status, serial, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    dependencies, count = ctypes.c_void_p(), ctypes.c_size_t()
    out = [ctypes.byref(v) for v in (status, serial, graph, dependencies, count)]
    if get_info(ctypes.c_void_p(stream.cuda_stream), *out) or not graph.value:
        return None
    nodes = ctypes.c_size_t()
    return None if get_nodes(graph, None, ctypes.byref(nodes)) else nodes.value


def begin_capture(stream: torch.cuda.Stream) -> bool:
    """Puts a stream that is not capturing into a capture of its own; False where the driver refuses."""
    begin = _function("StreamBeginCapture" if torch.version.hip else "StreamBeginCapture_v2")
    return begin is not None and not begin(ctypes.c_void_p(stream.cuda_stream), THREAD_LOCAL)


def graph_launch() -> Callable[[ctypes.c_void_p, ctypes.c_void_p], int] | None:
    """`launch(executable, stream)`, 0 for success; None where there is no driver to call."""
    return _function("GraphLaunch")


@cache
def _function(name: str) -> Callable[..., Any] | None:
    library, prefix = ("libamdhip64.so", "hip") if torch.version.hip else ("libcuda.so.1", "cu")
    try:
        found: Callable[..., Any] = getattr(ctypes.CDLL(library), prefix + name)
    except (OSError, AttributeError):
        return None
    return found
