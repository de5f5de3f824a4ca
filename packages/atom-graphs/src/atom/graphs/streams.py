"""Forks onto side streams while recording, and whether they were joined before a break.

Nothing may be in flight on another stream across a break: the next segment would read what may not be there
yet, which works on an idle host and fails, or mixes old and new data, on a loaded one. CUDA notices only
what happens inside of a capture, and not by name; so torch's stream calls are watched while a recording is
in progress. Work that C++ or another library puts on a stream of its own cannot be seen here.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from atom.graphs.errors import StreamForkError
from atom.graphs.wrapping import wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

StreamKey = tuple[int, int]
Clocks = dict[StreamKey, int]


@dataclass(frozen=True)
class _Recorded:
    """What an event stands for."""

    event: Any
    """Held, so that no other event gets its id."""
    stream: str
    clocks: Clocks
    """How far each stream had come that the event waits for."""
    node: int
    in_region: bool
    place: str


class StreamWatch:
    """Vector clocks over streams: how far each has come, and how far each knows of the others."""

    def __init__(self, main: Any) -> None:
        self._main = _key(main)
        self._names: dict[StreamKey, str] = {}
        self._clock: Clocks = defaultdict(int)
        self._knows: dict[StreamKey, Clocks] = defaultdict(dict)
        self._events: dict[int, _Recorded] = {}
        self._node, self._in_region, self._place = 0, False, "the first segment"

    def enter_node(self, place: str, *, in_region: bool) -> None:
        """A break: what follows belongs to another node."""
        self._node += 1
        self._in_region, self._place = in_region, place

    def unjoined(self) -> list[str]:
        """Side streams with work that the main stream has not waited for."""
        known = self._knows[self._main]
        return [
            self._names[s] for s, clock in self._clock.items() if s != self._main and clock > known.get(s, 0)
        ]

    def check_joined(self, region: str) -> None:
        """Raises `StreamForkError`, naming stream and region, if a fork is open at a break."""
        open_forks = self.unjoined()
        if open_forks:
            raise StreamForkError(
                f"work left on {', '.join(open_forks)} in {self._place} is not joined before the break at "
                f"region "
                f"{region}: let the recording's stream wait for it there"
            )

    def used(self, stream: Any) -> None:
        """`stream` became current, or was made to wait: it may have work from now on."""
        key = self._note(stream)
        if key != self._main:
            self._clock[key] += 1

    def recorded(self, event: Any, stream: Any) -> None:
        key = self._note(stream)
        clocks = {**self._knows[key], key: self._clock[key]}
        self._events[id(event)] = _Recorded(
            event, self._names[key], clocks, self._node, self._in_region, self._place
        )

    def waited(self, event: Any, stream: Any) -> None:
        """Raises `StreamForkError` if the event cannot be waited for here: only regions keep real events."""
        known = self._events.get(id(event))
        if known is not None and known.node != self._node and not (known.in_region and self._in_region):
            raise StreamForkError(
                f"an event recorded on {known.stream} in {known.place} is waited for in {self._place}: a "
                "replay "
                "would not wait; record and wait in one segment or one region"
            )
        self.used(stream)
        if known is not None:
            self._learn(self._note(stream), known.clocks)

    def synchronized(self, what: Any = None) -> None:
        """The host waited for a stream, an event, or with None for the whole device."""
        if what is None:
            self._learn(self._main, dict(self._clock))
        elif id(what) in self._events:
            self._learn(self._main, self._events[id(what)].clocks)
        elif hasattr(what, "stream_id"):
            key = self._note(what)
            self._learn(self._main, {**self._knows[key], key: self._clock[key]})

    def _learn(self, key: StreamKey, clocks: Clocks) -> None:
        knows = self._knows[key]
        for stream, clock in clocks.items():
            knows[stream] = max(knows.get(stream, 0), clock)

    def _note(self, stream: Any) -> StreamKey:
        key = _key(stream)
        self._names.setdefault(key, f"stream {stream!r}")
        return key


def _key(stream: Any) -> StreamKey:
    return stream.device_index, stream.stream_id


@contextmanager
def observing(watch: StreamWatch) -> Iterator[None]:
    """Reports this thread's stream calls to `watch`; torch has no hooks, so they are wrapped meanwhile."""
    stream, event = torch.cuda.Stream, torch.cuda.Event

    def set_stream(to: Any) -> None:
        if to is not None:
            watch.used(to)

    def record(e: Any, on: Any = None) -> None:
        watch.recorded(e, torch.cuda.current_stream() if on is None else on)

    def wait(e: Any, on: Any = None) -> None:
        watch.waited(e, torch.cuda.current_stream() if on is None else on)

    # A plain torch.Event does its work in C++, where nothing is wrapped.
    def wait_event(s: Any, e: Any) -> None:
        if not isinstance(e, event):
            watch.waited(e, s)

    def record_event(s: Any, e: Any = None) -> None:
        if e is not None and not isinstance(e, event):
            watch.recorded(e, s)

    def synchronize(*_: Any) -> None:
        watch.synchronized()

    wrappers: list[tuple[Any, str, Callable[..., None]]] = [
        (torch.cuda, "set_stream", set_stream),
        (torch.cuda, "synchronize", synchronize),
        (stream, "__enter__", watch.used),
        (stream, "wait_event", wait_event),
        (stream, "record_event", record_event),
        (stream, "synchronize", watch.synchronized),
        (event, "record", record),
        (event, "wait", wait),
        (event, "synchronize", watch.synchronized),
    ]
    with ExitStack() as patches:
        for owner, name, before in wrappers:
            if hasattr(owner, name):
                patches.enter_context(wrapped(owner, name, _in_this_thread(before)))
        yield


def _in_this_thread(before: Callable[..., None]) -> Callable[..., None]:
    thread = get_ident()

    def call(*args: Any) -> None:
        if get_ident() == thread:
            before(*args)

    return call
