"""Region graphs: token graphs, request graphs, the marks that shape them and the pool they share."""

from __future__ import annotations

from atom.graphs.marks import eager_region, host_data, opaque_call
from atom.graphs.pool import GraphPool, graph_pool
from atom.graphs.recording_unit import token_graph, token_graph_of, token_graphs
from atom.graphs.req_graph import ReqGraph, RequestBucket, request_bucket
from atom.graphs.token_bucket import Phase, TokenGraph

__all__ = [
    "GraphPool",
    "Phase",
    "ReqGraph",
    "RequestBucket",
    "TokenGraph",
    "eager_region",
    "graph_pool",
    "host_data",
    "opaque_call",
    "request_bucket",
    "token_graph",
    "token_graph_of",
    "token_graphs",
]
