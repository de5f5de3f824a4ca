from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from atom.graphs import (
    BucketError,
    Context,
    ForwardMode,
    ReqGraph,
    eager_region,
    token_graph,
    token_graph_of,
    token_graphs,
)
from atom.graphs.forward_context import forward_context


@eager_region
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@token_graph
class Unit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ran = 0

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        self.ran += 1
        y = halved(x * 3)
        return y if scale is None else y * scale


def context(kind: Any, tr_graph: Any = None, *, is_prefill: bool = False, **given: Any) -> Any:
    made = Context(positions=torch.zeros(1, device=kind.device), is_prefill=is_prefill)
    return forward_context(None, None, made, tr_graph=tr_graph, **given)


class TestByDevice:
    """The default recorder is the inputs' device's own."""

    def test_record_then_replay_as_the_context_says(self, kind: Any) -> None:
        unit = Unit()
        x = kind.randn(4, 2)
        assert torch.equal(unit(x), x * 3 / 2)
        assert token_graph_of(unit) is None
        with context(kind, "record"):
            unit(x)
        with context(kind, "replay"):
            y = kind.randn(4, 2, seed=1)
            assert torch.equal(unit(y), y * 3 / 2)
            assert torch.equal(unit(y[:2]), y[:2] * 3 / 2)
        assert unit.ran == 2

    def test_a_settled_token_graph_replays(self, kind: Any) -> None:
        unit = Unit()
        x = kind.randn(4, 2)
        with context(kind, "record"):
            unit(x)
        with context(kind, forward_mode=ForwardMode("token", 4, 4, True, None, "test")):
            assert torch.equal(unit(x), x * 3 / 2)
        with context(kind, forward_mode=ForwardMode("eager", 4, 4, False, None, "test")):
            unit(x)
        assert unit.ran == 2

    def test_the_phase_is_the_contexts(self, kind: Any) -> None:
        unit = Unit()
        x = kind.randn(4, 2)
        with context(kind, "record"):
            unit(x)
        with context(kind, "replay", is_prefill=True), pytest.raises(BucketError, match="no prefill bucket"):
            unit(x)
        with context(kind, "record", is_prefill=True):
            unit(x)
        with context(kind, "replay", is_prefill=True):
            unit(x)
        graph = token_graph_of(unit)
        assert graph is not None
        assert graph.captured_sizes("prefill") == [4]
        assert unit.ran == 1

    def test_arguments_by_name_are_arguments_by_position(self, kind: Any) -> None:
        unit = Unit()
        x, scale = kind.randn(4, 2), kind.randn(4, 2, seed=2)
        with context(kind, "record"):
            unit(x.clone(), scale=scale.clone())
        with context(kind, "replay"):
            assert torch.equal(unit(x=x, scale=scale * 2), x * 3 / 2 * (scale * 2))
            assert torch.equal(unit(x, scale), x * 3 / 2 * scale)

    def test_per_phase_with_the_mark_called(self, kind: Any) -> None:
        @token_graph(per_phase=True)
        class Stage(nn.Module):
            factor = 2.0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.factor

        stage = Stage()
        x = kind.randn(2, 2)
        with context(kind, "record"):
            stage(x)
        stage.factor = 7.0
        with context(kind, "record", is_prefill=True):
            stage(x)
        with context(kind, "replay"):
            assert torch.equal(stage(x), x * 2)
        with context(kind, "replay", is_prefill=True):
            assert torch.equal(stage(x), x * 7)

    def test_units_in_one_model_are_found_by_name(self, kind: Any) -> None:
        model = nn.Sequential(Unit(), nn.Identity(), Unit())
        with context(kind, "record"):
            model(kind.randn(2, 2))
        assert list(token_graphs(model)) == ["0", "2"]

    def test_a_unit_inside_of_a_unit_belongs_to_its_recording(self, kind: Any) -> None:
        @token_graph
        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = Unit()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y: torch.Tensor = self.inner(x + 1)
                return y - 1

        outer = Outer()
        x = kind.randn(2, 2)
        with context(kind, "record"):
            outer(x)
        assert list(token_graphs(outer)) == [""]
        with context(kind, "replay"):
            assert torch.equal(outer(x), (x + 1) * 3 / 2 - 1)

    def test_inside_of_a_request_graph_it_is_a_plain_call(self, kind: Any) -> None:
        @token_graph
        class Plain(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * 3

        unit, x, graph = Plain(), kind.randn(2, 2), ReqGraph(recorder=kind.recorder)
        graph.record(lambda: unit(x), bucket=(2, 0))
        assert torch.equal(graph.replay((2, 0)), x * 3)
        assert token_graph_of(unit) is None


def test_a_keyword_only_argument_is_refused_by_name() -> None:
    @token_graph
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor, *, flag: bool = False) -> torch.Tensor:
            return x

    with (
        forward_context(None, None, None, tr_graph="record"),
        pytest.raises(TypeError, match=r"Odd is a recording unit, .* keyword-only arguments: flag"),
    ):
        Odd()(torch.zeros(2, 2), flag=True)


def test_the_mark_wraps_the_call_of_a_class_that_compiles_itself() -> None:
    """Compilation hangs on `nn.Module.__call__`, inside of the mark, in either order of decorators."""
    ran: list[str] = []

    def compiling(cls: Any) -> Any:
        init = cls.__init__

        def __init__(self: Any) -> None:  # noqa: N807
            init(self)
            self._compiled_call_impl = lambda x: (ran.append("compiled"), self.forward(x))[1]

        cls.__init__ = __init__
        return cls

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return halved(x)

    def fresh() -> Any:
        return type("Model", (Model,), {})

    x = torch.randn(2, 2)
    for decorate in (lambda c: token_graph(compiling(c)), lambda c: compiling(token_graph(c))):
        ran.clear()
        model = decorate(fresh())()
        with forward_context(None, None, None, tr_graph="record"):
            model(x.clone())
        with forward_context(None, None, None, tr_graph="replay"):
            assert torch.equal(model(x * 2), x)
        assert ran == ["compiled"]
