"""Region graphs: device graphs that break only where the host is needed, and the forward's side channel."""

from atom.graphs.bound_calls import bind_replays
from atom.graphs.cuda_recorder import CUDARecorder
from atom.graphs.dispatch import ForwardMode
from atom.graphs.draft_graph import DraftGraph
from atom.graphs.errors import (
    BucketError,
    DispatchError,
    GraphError,
    NestedRecordingError,
    RecordingError,
    RegionRefusedError,
    RegionResultError,
    ReplayInputError,
    StreamForkError,
    TapeRefusedError,
)
from atom.graphs.forward_context import (
    AttentionMetaData,
    Context,
    DPMetadata,
    ForwardContext,
    KVCacheTensor,
    SpecDecodeMetadata,
    StaticForwardContext,
    get_forward_context,
    reset_forward_context,
    set_forward_context,
)
from atom.graphs.generators import register_generator
from atom.graphs.marks import eager_region, host_data, opaque_call
from atom.graphs.microbatch import decode_bucket_splits, decode_ubatch_request_ranges
from atom.graphs.nccl_watchdog import drain_nccl_works
from atom.graphs.pool import GraphPool, graph_pool
from atom.graphs.recorder import Recorder
from atom.graphs.recording import Recording, RegionNode, Segment
from atom.graphs.recording_unit import token_graph, token_graph_of, token_graphs
from atom.graphs.report import GraphReport, OutputDifference, RecordingReport, Verification
from atom.graphs.req_graph import ReqGraph, request_bucket
from atom.graphs.tape_recorder import TapeRecorder
from atom.graphs.token_bucket import TokenGraph

__all__ = [
    "AttentionMetaData",
    "BucketError",
    "CUDARecorder",
    "Context",
    "DPMetadata",
    "DispatchError",
    "DraftGraph",
    "ForwardContext",
    "ForwardMode",
    "GraphError",
    "GraphPool",
    "GraphReport",
    "KVCacheTensor",
    "NestedRecordingError",
    "OutputDifference",
    "Recorder",
    "Recording",
    "RecordingError",
    "RecordingReport",
    "RegionNode",
    "RegionRefusedError",
    "RegionResultError",
    "ReplayInputError",
    "ReqGraph",
    "Segment",
    "SpecDecodeMetadata",
    "StaticForwardContext",
    "StreamForkError",
    "TapeRecorder",
    "TapeRefusedError",
    "TokenGraph",
    "Verification",
    "bind_replays",
    "decode_bucket_splits",
    "decode_ubatch_request_ranges",
    "drain_nccl_works",
    "eager_region",
    "get_forward_context",
    "graph_pool",
    "host_data",
    "opaque_call",
    "register_generator",
    "request_bucket",
    "reset_forward_context",
    "set_forward_context",
    "token_graph",
    "token_graph_of",
    "token_graphs",
]
