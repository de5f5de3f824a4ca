"""A drafter's own passes, recorded in either graph mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atom.graphs.keyed_graph import KeyedGraph

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom.graphs.recorder import Recorder
    from atom.graphs.report import Verification
    from atom.graphs.req_graph import RequestBucket

DraftPass = tuple["RequestBucket", int]


class DraftGraph(KeyedGraph[DraftPass]):
    """Recordings by request bucket and pass: pass 0 drafts the first token, pass `i` the one after `i`
    others.

    Drafters carry no `@token_graph`; they record and replay their passes themselves, in fixed buffers.

    Args:
        breaks: Break at eager regions, as token graphs do (TR_HYBRID); otherwise hold bucket-fixed regions
            inline and refuse others, as request graphs do (FULL).
    """

    _kind = "draft pass"

    def __init__(self, *, breaks: bool, recorder: Recorder | None = None) -> None:
        super().__init__(breaks=breaks, recorder=recorder)

    def record(self, forward: Callable[[], Any], *, bucket: RequestBucket, draft_pass: int = 0) -> Any:
        """Records one pass and returns its result.

        Raises:
            NestedRecordingError: a recording is in progress.
            RecordingError: it failed, and left nothing.
        """
        return self._record((bucket, draft_pass), forward)

    def replay(self, bucket: RequestBucket, draft_pass: int = 0) -> Any:
        """Runs one pass and returns its result, which is valid until the next replay in the pool.

        Raises:
            BucketError: it was not recorded; lists those that were.
        """
        return self._replay((bucket, draft_pass))

    def verify(self, bucket: RequestBucket, draft_pass: int = 0) -> Verification:
        """Replays a pass, then runs its forward eagerly on the same buffers, and compares.

        Raises:
            BucketError: it was not recorded.
        """
        return self._verify((bucket, draft_pass))

    @property
    def passes(self) -> list[DraftPass]:
        """What was recorded, ascending."""
        return sorted(self._recordings)
