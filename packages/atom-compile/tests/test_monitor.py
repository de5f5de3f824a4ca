"""How long compilation took."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from atom.compile import compile_monitor, end_monitoring_torch_compile, start_monitoring_torch_compile


@pytest.mark.usefixtures("compilers")
def test_times_are_kept_by_step_and_logged_at_the_end(
    config_for: Any, stack_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_for()
    assert start_monitoring_torch_compile(config) is compile_monitor
    stack_of(config, layers=1)(torch.arange(3))
    assert 0 < compile_monitor.seconds["backend"] < compile_monitor.seconds["trace"]
    with caplog.at_level(logging.INFO, logger="atom.compile"):
        assert end_monitoring_torch_compile(config) == pytest.approx(sum(compile_monitor.seconds.values()))
    assert "at level 3 took" in caplog.text
    assert end_monitoring_torch_compile(config) == 0.0
