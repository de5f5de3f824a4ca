from __future__ import annotations

from ctypes import c_void_p
from typing import Any

import pytest
import torch

from atom.graphs import launch
from atom.graphs.launch import Launch, replayer

DEVICE = 0


class FakeDriver:
    """Notes launches; refuses the executables it is told to."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.refused: set[int] = set()

    def launch(self, executable: c_void_p, stream: c_void_p) -> int:
        if executable.value in self.refused:
            return 400
        self.log.append((executable.value, stream.value))
        return 0

    def segment(self, executable: int | None) -> Launch:
        made = Launch.__new__(Launch)
        made.executable = None if executable is None else c_void_p(executable)
        made.torch_launch = lambda: self.log.append(f"torch {executable}")
        return made

    def region(self, name: str) -> Any:
        return lambda: self.log.append(f"{name} grad {torch.is_grad_enabled()}")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(launch, "graph_launch", lambda: fake.launch)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 70 + device, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: DEVICE, raising=False)
    return fake


def test_one_segment_is_one_call_on_the_current_stream(driver: FakeDriver) -> None:
    replay = replayer([driver.segment(5)], "result", DEVICE)
    assert replay() == "result"
    assert driver.log == [(5, 70)]


def test_segments_and_regions_run_in_order_without_gradients(driver: FakeDriver) -> None:
    s, r = driver.segment, driver.region
    calls = [r("a"), s(1), r("b"), r("c"), s(2), s(3), r("d")]
    assert torch.is_grad_enabled()
    assert replayer(calls, "result", DEVICE)() == "result"
    assert driver.log == [
        "a grad False",
        (1, 70),
        "b grad False",
        "c grad False",
        (2, 70),
        (3, 70),
        "d grad False",
    ]
    assert torch.is_grad_enabled()


def test_a_region_that_raises_leaves_gradients_as_they_were(driver: FakeDriver) -> None:
    def fail() -> None:
        raise ValueError("region")

    with pytest.raises(ValueError, match="region"):
        replayer([driver.segment(1), fail], None, DEVICE)()
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("alone", [True, False])
def test_what_the_driver_call_refuses_torch_launches(driver: FakeDriver, alone: bool) -> None:
    driver.refused = {1}
    calls = [driver.segment(1)] if alone else [driver.segment(1), driver.segment(2)]
    replayer(calls, None, DEVICE)()
    assert driver.log == (["torch 1"] if alone else ["torch 1", (2, 70)])


@pytest.mark.parametrize("alone", [True, False])
def test_a_segment_that_draws_random_numbers_is_launched_by_torch(driver: FakeDriver, alone: bool) -> None:
    calls = [driver.segment(None)] if alone else [driver.segment(1), driver.segment(None)]
    replayer(calls, None, DEVICE)()
    assert driver.log == (["torch None"] if alone else [(1, 70), "torch None"])


def test_without_a_driver_torch_launches_on_the_recordings_device(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int] = []

    class Device:
        def __init__(self, index: int) -> None:
            entered.append(index)

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(torch.cuda, "device", Device)
    calls = [driver.segment(1), driver.region("a")]
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: DEVICE + 1, raising=False)
    replayer(calls, None, DEVICE)()
    monkeypatch.setattr(launch, "graph_launch", lambda: None)
    replayer(calls, None, DEVICE)()
    assert driver.log == ["torch 1", "a grad False"] * 2
    assert entered == [DEVICE, DEVICE]
