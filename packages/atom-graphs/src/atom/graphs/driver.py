"""Calls of the device driver that torch does not offer, or offers at more than twice the price."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

THREAD_LOCAL = 1
"""Capture mode: calls of other threads are none of the capture's business."""


def node_counter(stream: torch.cuda.Stream) -> Callable[[], int | None]:
    """A function that gives the nodes captured on `stream` since its capture began.

    It gives None where the driver cannot be asked. Everything passed is made here once: a recording asks at
    every break.
    """
    get_info, get_nodes = _function("StreamGetCaptureInfo_v2"), _function("GraphGetNodes")
    if get_info is None or get_nodes is None:
        return lambda: None
    status, serial, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    dependencies, count, nodes = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    out = [ctypes.byref(v) for v in (status, serial, graph, dependencies, count)]
    handle, to = ctypes.c_void_p(stream.cuda_stream), ctypes.byref(nodes)

    def captured() -> int | None:
        graph.value = None
        if get_info(handle, *out) or not graph.value or get_nodes(graph, None, to):
            return None
        return nodes.value

    return captured


def begin_capture(stream: torch.cuda.Stream) -> bool:
    """Puts a stream that is not capturing into a capture of its own; False where the driver refuses."""
    begin = _function("StreamBeginCapture" if torch.version.hip else "StreamBeginCapture_v2")
    return begin is not None and not begin(ctypes.c_void_p(stream.cuda_stream), THREAD_LOCAL)


def graph_launch() -> Callable[[ctypes.c_void_p, ctypes.c_void_p], int] | None:
    """`launch(executable, stream)`, 0 for success; None where there is no driver to call."""
    return _function("GraphLaunch")


@cache
def graph_update() -> Callable[[ctypes.c_void_p, ctypes.c_void_p], int] | None:
    """`update(executable, graph)`, 0 for success; None where the driver has no such call, as on HIP."""
    update = None if torch.version.hip else _function("GraphExecUpdate_v2")
    if update is None or _function("GraphKernelNodeGetParams_v2") is None:
        return None
    if not hasattr(torch._C._CUDAGraph, "raw_cuda_graph_exec"):
        return None
    told = (ctypes.c_uint64 * 4)()
    return lambda executable, graph: int(update(executable, graph, told))


MAX_NODES = 256
WITHOUT_KERNEL = frozenset((1, 2, 5, 6, 7))
"""Node types that compute nothing: copies, fills, empty nodes, events."""


def kernel_functions(graph: int) -> frozenset[int] | None:
    """The kernels that a graph launches, by handle; None where that cannot be told, or takes too long."""
    read = _kernel_reader()
    return None if read is None else read(graph)


@cache
def _kernel_reader() -> Callable[[int], frozenset[int] | None] | None:
    nodes_of, type_of = _function("GraphGetNodes"), _function("GraphNodeGetType")
    params_of = _function("GraphKernelNodeGetParams_v2")
    if nodes_of is None or type_of is None or params_of is None:
        return None
    nodes, count, kind = (ctypes.c_void_p * MAX_NODES)(), ctypes.c_size_t(), ctypes.c_int()
    # The structure begins with the function's handle, and ends with kernel and context where it has none.
    params = (ctypes.c_uint64 * 16)()
    to_count, to_kind = ctypes.byref(count), ctypes.byref(kind)

    def read(graph: int) -> frozenset[int] | None:
        handle = ctypes.c_void_p(graph)
        if nodes_of(handle, None, to_count) or count.value > MAX_NODES or nodes_of(handle, nodes, to_count):
            return None
        found = set()
        for node in map(ctypes.c_void_p, nodes[: count.value]):
            if params_of(node, params) == 0:
                found.add(params[0] or params[7])
            elif type_of(node, to_kind) or kind.value not in WITHOUT_KERNEL:
                return None
        return frozenset(found)

    return read


@cache
def _function(name: str) -> Callable[..., Any] | None:
    library, prefix = ("libamdhip64.so", "hip") if torch.version.hip else ("libcuda.so.1", "cu")
    try:
        found: Callable[..., Any] = getattr(ctypes.CDLL(library), prefix + name)
    except (OSError, AttributeError):
        return None
    return found
