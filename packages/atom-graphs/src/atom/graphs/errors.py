"""What can go wrong with a recording.

GraphError
├── DispatchError (ValueError)      a step that cannot be dispatched as described
├── BucketError (LookupError)       no recording for that bucket
├── ReplayInputError (ValueError)   an input that the recording cannot take
├── RegionResultError               a region returned what its recording cannot take
└── RecordingError                  a recording failed; nothing of it is left
    ├── NestedRecordingError        a recording begun inside another
    ├── RegionRefusedError          a region that this kind of recording cannot hold
    ├── TapeRefusedError            an op whose replay would not be what eager does
    └── StreamForkError             a side stream not joined before a break
"""

from __future__ import annotations


class GraphError(Exception):
    """Base of everything this package raises on purpose."""


class DispatchError(GraphError, ValueError):
    """A step was described to `ForwardMode.decide` in a way no step can be."""


class BucketError(GraphError, LookupError):
    """A replay asked for a bucket that was not recorded; the message lists those that were."""


class ReplayInputError(GraphError, ValueError):
    """An input of a replay differs from the recorded one in more than its number of rows."""


class RegionResultError(GraphError):
    """A region returned, in a replay, something that has no place in its recording."""


class RecordingError(GraphError):
    """A recording failed. The bucket does not exist, no recorder is active and the device can be used."""


class NestedRecordingError(RecordingError):
    """A recording began while another was in progress."""


class RegionRefusedError(RecordingError):
    """A region needs the host where the recording has no break for it."""


class TapeRefusedError(RecordingError):
    """An op that a device graph would refuse, or freeze unsaid; the message names op and source line."""


class StreamForkError(RecordingError):
    """Work was left on a side stream across a break; the message names stream and region."""
