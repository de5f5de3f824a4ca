"""Request graphs: one recording a request bucket, without a break."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atom.graphs.errors import RecordingError
from atom.graphs.forward_context import AttentionMetaData, get_forward_context
from atom.graphs.keyed_graph import KeyedGraph

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom.graphs.recorder import Recorder
    from atom.graphs.report import Verification

RequestBucket = tuple[int, int]


def request_bucket(running_bs: int, max_seqlen_q: int) -> RequestBucket:
    """`(running_bs, draft_num)`: the padded sequences, and the draft tokens each of them verifies.

    A sequence has one query row for the token it decodes and one for each draft.
    """
    return running_bs, max_seqlen_q - 1


class ReqGraph(KeyedGraph[RequestBucket]):
    """Whole forwards by request bucket: fixed buffers, no copies, one launch.

    A region is held inline if it is `bucket_fixed`; any other makes the recording fail, naming it.
    """

    _kind = "request bucket"

    def __init__(self, *, recorder: Recorder | None = None) -> None:
        super().__init__(breaks=False, recorder=recorder)

    def record(self, forward: Callable[[], Any], *, bucket: RequestBucket | None = None) -> Any:
        """Records `forward` as `bucket` (None: the bucket of the current forward context); returns its
        result.

        Raises:
            NestedRecordingError: a recording is in progress.
            RegionRefusedError: a region's launches are not fixed by the bucket.
            RecordingError: it failed, and left nothing; or there is no context to take the bucket from.
        """
        return self._record(_current_bucket() if bucket is None else bucket, forward)

    def replay(self, bucket: RequestBucket) -> Any:
        """Runs a bucket and returns its result, which is valid until the next replay in the pool.

        Raises:
            BucketError: it was not recorded; lists those that were.
        """
        return self._replay(bucket)

    def verify(self, bucket: RequestBucket) -> Verification:
        """Replays a bucket, then runs its forward eagerly on the same buffers, and compares.

        Raises:
            BucketError: it was not recorded.
        """
        return self._verify(bucket)

    @property
    def buckets(self) -> list[RequestBucket]:
        """What was recorded, ascending."""
        return sorted(self._recordings)

    def captured_sizes(self, draft_num: int = 0) -> list[int]:
        """The batch sizes recorded for that many drafts, ascending."""
        return [running_bs for running_bs, drafts in self.buckets if drafts == draft_num]


def _current_bucket() -> RequestBucket:
    now = get_forward_context()
    if now.context is None or not isinstance(now.attn_metadata, AttentionMetaData):
        raise RecordingError(
            "no forward context to take the request bucket from: set one before, or pass bucket="
        )
    return request_bucket(now.context.running_bs, now.attn_metadata.max_seqlen_q)
