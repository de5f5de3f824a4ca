"""`@support_torch_compile` as a class decorator."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import atom.compile.decorators
import atom.utils.decorators
from atom.compile.decorators import TorchCompileWrapperWithCustomDispatcher, support_torch_compile
from atom.compile.errors import CompileSettingError, DynamicDimsError


def config_at(level: int) -> Any:
    return SimpleNamespace(compilation_config=SimpleNamespace(level=level))


@support_torch_compile
class Plain(nn.Module):
    def __init__(self, *, atom_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.forwards = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        return self.linear(x)


def test_the_guides_import_path_is_the_same_module() -> None:
    assert sys.modules["atom.utils.decorators"] is atom.compile.decorators
    assert atom.utils.decorators is atom.compile.decorators


@pytest.mark.parametrize("level", [0, 1])
def test_levels_0_and_1_call_forward_and_nothing_else(level: int) -> None:
    model = Plain(atom_config=config_at(level))
    x = torch.randn(3, 4)
    assert model.do_not_compile
    assert isinstance(model, TorchCompileWrapperWithCustomDispatcher)
    assert torch.equal(model(x), model.linear(x))
    assert model.forwards == 1


@support_torch_compile(dynamic_arg_dims={"x": -1, "y": [0, 1]})
class WithDims(nn.Module):
    def __init__(self, atom_config: Any) -> None:
        super().__init__()

    def forward(self, x: Any, y: Any) -> Any:
        return x + y


def test_dims_may_be_given_and_the_config_be_positional(config_for: Any) -> None:
    assert WithDims(config_at(0))(1, 2) == 3
    assert WithDims(config_for(2))._compiled_forward._dims == {"x": (-1,), "y": (0, 1)}


def test_the_prefix_is_optional_for_the_model() -> None:
    assert WithDims(atom_config=config_at(0), prefix="model").do_not_compile


def test_a_subclass_of_a_decorated_class_compiles_like_its_parent() -> None:
    class Child(Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    model = Child(atom_config=config_at(0))
    x = torch.randn(2, 4)
    assert torch.equal(model(x), model.linear(x) * 2)


def test_a_call_of_the_classs_own_stays_outermost() -> None:
    class Outer(nn.Module):
        def __init__(self, atom_config: Any) -> None:
            super().__init__()

        def __call__(self, x: torch.Tensor) -> Any:
            return ("recorded", super().__call__(x))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    model = support_torch_compile(Outer)(atom_config=config_at(0))
    tag, value = model(torch.zeros(1))
    assert tag == "recorded"
    assert value.item() == 1


def test_a_forward_without_tensor_annotations_is_refused() -> None:
    class Bare(nn.Module):
        def __init__(self, atom_config: Any) -> None:
            super().__init__()

        def forward(self, x, y: int):  # type: ignore[no-untyped-def]
            return x

    with pytest.raises(DynamicDimsError, match=r"Bare\.forward.*dynamic_arg_dims"):
        support_torch_compile(Bare)
    with pytest.raises(DynamicDimsError, match=r"\['z'\].*takes \['x', 'y'\]"):
        support_torch_compile(dynamic_arg_dims={"z": 0})(Bare)


def test_only_modules_that_take_a_config_can_be_decorated() -> None:
    class NoConfig(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(CompileSettingError, match=r"NoConfig.*atom_config"):
        support_torch_compile(NoConfig)
    with pytest.raises(CompileSettingError, match=r"nn\.Module"):
        support_torch_compile(int)  # type: ignore[type-var]
    with pytest.raises(CompileSettingError, match=r"Plain.*atom_config="):
        Plain(prefix="x")
