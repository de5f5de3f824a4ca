from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any, cast

import pytest

from atom.graphs import driver


@pytest.fixture(autouse=True)
def _forget() -> Any:
    driver._function.cache_clear()
    yield
    driver._function.cache_clear()


STREAM = cast("Any", SimpleNamespace(cuda_stream=7))


def test_without_a_driver_nothing_is_known_and_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert driver.node_counter(STREAM)() is None
    assert driver.begin_capture(STREAM) is False
    assert driver.graph_launch() is None


class Library:
    """A driver whose stream 7 captures into graph 99 with five nodes."""

    def __init__(self, *, capturing: bool = True) -> None:
        self.graph = 99 if capturing else None
        self.began: list[tuple[int, int]] = []

    def cuStreamGetCaptureInfo_v2(self, stream: Any, *out: Any) -> int:  # noqa: N802
        out[2]._obj.value = self.graph
        return 0

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:  # noqa: N802
        assert graph.value == 99
        count._obj.value = 5
        return 0

    def cuStreamBeginCapture_v2(self, stream: Any, mode: int) -> int:  # noqa: N802
        self.began.append((stream.value, mode))
        return 0


def test_nodes_are_counted_while_a_stream_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    assert driver.node_counter(STREAM)() == 5


def test_a_stream_that_does_not_capture_has_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library(capturing=False))
    assert driver.node_counter(STREAM)() is None


def test_a_capture_is_begun_for_this_thread_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert driver.begin_capture(STREAM) is True
    assert library.began == [(7, driver.THREAD_LOCAL)]


def test_a_driver_without_the_call_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert driver.node_counter(STREAM)() is None
    assert driver.graph_launch() is None
