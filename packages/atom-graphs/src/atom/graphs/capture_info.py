"""How many nodes a stream capture has so far, asked of the driver: torch does not tell."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def captured_nodes(stream: torch.cuda.Stream) -> int | None:
    """Nodes captured on `stream` since its capture began; None where the driver cannot be asked."""
    functions = _driver()
    if functions is None:
        return None
    get_info, get_nodes = functions
    status, serial, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    dependencies, count = ctypes.c_void_p(), ctypes.c_size_t()
    handle = ctypes.c_void_p(stream.cuda_stream)
    failed = get_info(
        handle,
        ctypes.byref(status),
        ctypes.byref(serial),
        ctypes.byref(graph),
        ctypes.byref(dependencies),
        ctypes.byref(count),
    )
    if failed or not graph.value:
        return None
    nodes = ctypes.c_size_t()
    failed = get_nodes(graph, None, ctypes.byref(nodes))
    return None if failed else nodes.value


@cache
def _driver() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    library, info, nodes = (
        ("libamdhip64.so", "hipStreamGetCaptureInfo_v2", "hipGraphGetNodes")
        if torch.version.hip
        else ("libcuda.so.1", "cuStreamGetCaptureInfo_v2", "cuGraphGetNodes")
    )
    try:
        loaded = ctypes.CDLL(library)
        return getattr(loaded, info), getattr(loaded, nodes)
    except (OSError, AttributeError):
        return None
