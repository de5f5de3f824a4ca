"""Every parameter is filled once, with the right shape, or one line says what is wrong."""

from __future__ import annotations

import io
import logging
import re
import sys
import time
from pathlib import Path

import pytest
import torch

from atom.models.checkpoint import TensorInfo, load_weights, progress_bar
from atom.models.errors import WeightsError


class InMemory:
    """A `WeightReader` over tensors that are already there."""

    path = Path("some.file")

    def __init__(self, **tensors: torch.Tensor) -> None:
        self._tensors = tensors
        self.tensors = {
            name: TensorInfo(name, tuple(tensor.shape), "float32", tensor.nbytes)
            for name, tensor in tensors.items()
        }
        self.read_names: list[str] = []

    def read_into(self, name: str, out: torch.Tensor) -> None:
        self.read_names.append(name)
        out.copy_(self._tensors[name])


Q, K, NORM = torch.randn(4, 3), torch.randn(2, 3), torch.randn(3)


@pytest.fixture
def fused() -> torch.Tensor:
    return torch.zeros(6, 3)


@pytest.fixture
def norm() -> torch.Tensor:
    return torch.zeros(3)


def test_parts_of_a_fused_parameter_and_whole_ones_are_filled(
    fused: torch.Tensor, norm: torch.Tensor
) -> None:
    load_weights(
        InMemory(q=Q, k=K, norm=NORM),
        {"q": fused[:4], "k": fused[4:], "norm": norm},
        parameters={"qk": fused, "norm": norm},
    )
    assert torch.equal(fused, torch.cat([Q, K]))
    assert torch.equal(norm, NORM)


def test_values_are_read_in_the_parameters_dtype() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4, 3, dtype=torch.bfloat16))
    load_weights(InMemory(q=Q), {"q": parameter}, parameters={"q": parameter})
    assert torch.equal(parameter, Q.to(torch.bfloat16))
    assert parameter.grad_fn is None


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"q": Q, "norm": NORM}, r"missing 'k'$"),
        ({"q": Q, "k": K, "norm": NORM, "x": Q, "y": Q}, r"unexpected 'x', 'y'$"),
        ({"q": Q.T, "k": K, "norm": NORM}, r"wrong shape: 'q' is \[3, 4\] but the model needs \[4, 3\]$"),
        ({"q": Q.T, "k": K, "x": Q}, r"missing 'norm'; unexpected 'x'; wrong shape: 'q'"),
        ({}, r"missing 'q', 'k', 'norm'$"),
        (
            {"q": Q, "k": K, "norm": NORM, **{f"x{i}": Q for i in range(9)}},
            r"unexpected 'x0', 'x1', 'x2', 'x3' and 5 more$",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_all_named_before_anything_is_read(
    stored: dict[str, torch.Tensor], message: str, fused: torch.Tensor, norm: torch.Tensor
) -> None:
    checkpoint = InMemory(**stored)
    with pytest.raises(WeightsError, match=rf"^some\.file: the tensors do not fit the model: {message}"):
        load_weights(
            checkpoint,
            {"q": fused[:4], "k": fused[4:], "norm": norm},
            parameters={"qk": fused, "norm": norm},
        )
    assert checkpoint.read_names == []
    assert not fused.any()


def test_what_is_ignored_is_neither_unexpected_nor_read(fused: torch.Tensor) -> None:
    checkpoint = InMemory(q=torch.ones(6, 3), head=Q)
    load_weights(checkpoint, {"q": fused}, parameters={"q": fused}, ignore=["head", "not_even_there"])
    assert checkpoint.read_names == ["q"]


def test_a_parameter_that_nothing_fills_is_named(fused: torch.Tensor, norm: torch.Tensor) -> None:
    with pytest.raises(WeightsError, match=r"no tensor fills all of the model's 'norm'$"):
        load_weights(InMemory(q=torch.ones(6, 3)), {"q": fused}, parameters={"qk": fused, "norm": norm})


def test_a_parameter_that_is_filled_in_part_is_named(fused: torch.Tensor) -> None:
    with pytest.raises(WeightsError, match=r"no tensor fills all of the model's 'qk'$"):
        load_weights(InMemory(q=Q), {"q": fused[:4]}, parameters={"qk": fused})


def test_weights_that_two_tensors_fill_are_named(fused: torch.Tensor) -> None:
    with pytest.raises(WeightsError, match=r"tensors 'q' and 'k' fill the same weights"):
        load_weights(InMemory(q=Q, k=K), {"q": fused[:4], "k": fused[3:5]}, parameters={"qk": fused})


def test_a_destination_with_holes_is_refused(fused: torch.Tensor) -> None:
    with pytest.raises(WeightsError, match="destination of tensor 'q' is not contiguous"):
        load_weights(InMemory(q=torch.ones(6, 2)), {"q": fused[:, :2]}, parameters={"qk": fused})


def test_a_tied_parameter_counts_once(fused: torch.Tensor) -> None:
    module = torch.nn.Module()
    module.embed = module.head = torch.nn.Parameter(fused)
    load_weights(
        InMemory(embed=torch.ones(6, 3)), {"embed": module.embed}, parameters=dict(module.named_parameters())
    )
    assert bool((module.head == 1).all())


def test_coverage_is_checked_without_memory_behind_it() -> None:
    parameter = torch.zeros(4, 3, device="meta")
    other = torch.zeros(4, 3, device="meta")
    with pytest.raises(WeightsError, match="no tensor fills all of the model's 'other'"):
        load_weights(InMemory(q=Q), {"q": parameter}, parameters={"q": parameter, "other": other})


def test_progress_is_told_in_bytes_up_to_all_of_them(fused: torch.Tensor, norm: torch.Tensor) -> None:
    told: list[tuple[int, int]] = []
    load_weights(
        InMemory(q=Q, k=K, norm=NORM),
        {"norm": norm, "k": fused[4:], "q": fused[:4]},
        parameters={"qk": fused, "norm": norm},
        progress=lambda done_bytes, total_bytes: told.append((done_bytes, total_bytes)),
    )
    assert told == [(48, 84), (72, 84), (84, 84)]


def test_values_that_are_not_finite_are_reported_when_asked(
    fused: torch.Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    spoiled = InMemory(a=torch.full((4, 3), torch.nan), b=torch.full((2, 3), torch.inf))
    destinations = {"a": fused[:4], "b": fused[4:]}
    with caplog.at_level(logging.WARNING, logger="atom.models"):
        load_weights(spoiled, destinations, parameters={"qk": fused})
        assert caplog.messages == []
        load_weights(spoiled, destinations, parameters={"qk": fused}, check_finite=True)
    assert caplog.messages == [
        f"some.file: tensor '{name}' holds values that are not finite" for name in "ab"
    ]


def test_the_bar_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as advance:
        advance(10, 20)
        advance(20, 20)
    assert capsys.readouterr() == ("", "")


def test_the_bar_counts_bytes_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("Reading") as advance:
        time.sleep(0.15)  # it redraws ten times a second
        advance(1 << 20, 4 << 20)
    assert re.search(r"Reading: +25%.*1\.00M/4\.00M", terminal.getvalue())
