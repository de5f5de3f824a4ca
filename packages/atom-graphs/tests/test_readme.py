"""The README's example runs as it stands, on the CPU and, where there is one, on the device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

README = Path(__file__).parent.parent / "README.md"


def example() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    return str(block)


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)
def test_the_example_runs_and_its_replay_equals_eager(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda")
    scope: dict[str, object] = {"__name__": "readme"}
    exec(compile(example(), str(README), "exec"), scope)
    printed = capsys.readouterr().out
    assert "torch.Size([5, 64])" in printed
    assert "token bucket 32" in printed
    x = torch.randn(8, 64, device=device)
    graph, net = scope["graph"], scope["net"]
    with torch.no_grad():
        torch.testing.assert_close(graph.replay(x), net(x), rtol=0, atol=0)  # type: ignore[attr-defined,operator]
