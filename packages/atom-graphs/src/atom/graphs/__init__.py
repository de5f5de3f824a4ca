"""Region graphs: device graphs that break only where the host is needed, and the forward's side channel."""

from atom.graphs.dispatch import ForwardMode
from atom.graphs.errors import (
    BucketError,
    DispatchError,
    GraphError,
    NestedRecordingError,
    RecordingError,
    RegionRefusedError,
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
    forward_context,
    get_forward_context,
    reset_forward_context,
    set_forward_context,
)
from atom.graphs.microbatch import decode_bucket_splits, decode_ubatch_request_ranges

__all__ = [
    "AttentionMetaData",
    "BucketError",
    "Context",
    "DPMetadata",
    "DispatchError",
    "ForwardContext",
    "ForwardMode",
    "GraphError",
    "KVCacheTensor",
    "NestedRecordingError",
    "RecordingError",
    "RegionRefusedError",
    "SpecDecodeMetadata",
    "StaticForwardContext",
    "StreamForkError",
    "TapeRefusedError",
    "decode_bucket_splits",
    "decode_ubatch_request_ranges",
    "forward_context",
    "get_forward_context",
    "reset_forward_context",
    "set_forward_context",
]
