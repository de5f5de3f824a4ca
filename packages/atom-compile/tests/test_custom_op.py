"""Registration of custom ops."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.library import Library

import atom.compile.custom_op
import atom.utils.custom_register
from atom.compile.custom_op import aiter_lib, direct_register_custom_op, op_overload, registered_op_func
from atom.compile.errors import CustomOpError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def library() -> Iterator[Library]:
    lib = Library("atom_test_custom_op", "FRAGMENT")
    yield lib
    lib._destroy()


def scale_into(x: torch.Tensor, out: torch.Tensor, factor: float) -> None:
    out.copy_(x * factor)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def fill_with_seven(x: torch.Tensor, out: torch.Tensor, factor: float) -> None:
    out.fill_(7.0)


def fake_double(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_the_guides_import_path_is_the_same_module() -> None:
    assert sys.modules["atom.utils.custom_register"] is atom.compile.custom_op
    assert atom.utils.custom_register is atom.compile.custom_op


def test_ops_go_to_the_aiter_namespace_unless_told_otherwise() -> None:
    direct_register_custom_op("atom_test_double", double, [], fake_double)
    assert aiter_lib.ns == "aiter"
    assert torch.equal(torch.ops.aiter.atom_test_double(torch.ones(3)), torch.full((3,), 2.0))


def test_the_default_key_registers_cpu_and_cuda(library: Library) -> None:
    direct_register_custom_op("both", double, [], fake_double, target_lib=library)
    for key in ("CPU", "CUDA"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key("atom_test_custom_op::both", key)


def test_another_key_registers_that_key_only(library: Library) -> None:
    direct_register_custom_op("cpu_only", double, [], fake_double, target_lib=library, dispatch_key="CPU")
    assert torch._C._dispatch_has_kernel_for_dispatch_key("atom_test_custom_op::cpu_only", "CPU")
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("atom_test_custom_op::cpu_only", "CUDA")


def test_a_mutating_op_needs_no_fake_and_survives_tracing(library: Library) -> None:
    direct_register_custom_op("scale_into", scale_into, ["out"], target_lib=library)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def run(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        torch.ops.atom_test_custom_op.scale_into(x, out, 3.0)
        return out + 1

    assert torch.equal(run(torch.ones(4)), torch.full((4,), 4.0))


def test_a_wrapped_function_keeps_the_schema_of_what_it_wraps(library: Library) -> None:
    @functools.wraps(double)
    def region(*args: Any, **kwargs: Any) -> Any:
        return double(*args, **kwargs)

    direct_register_custom_op("region", region, [], fake_double, target_lib=library)
    op = op_overload("atom_test_custom_op.region")
    assert str(op._schema) == "atom_test_custom_op::region(Tensor x) -> Tensor"
    assert registered_op_func(op) is region


def test_an_equal_schema_keeps_the_existing_op(library: Library) -> None:
    library.define("kept(Tensor x, Tensor(zz!) out, float factor) -> ()")
    library.impl("kept", fill_with_seven, "CPU")
    direct_register_custom_op("kept", scale_into, ["out"], target_lib=library)
    out = torch.zeros(2)
    torch.ops.atom_test_custom_op.kept(torch.ones(2), out, 3.0)
    assert torch.equal(out, torch.full((2,), 7.0))
    assert torch._C._dispatch_has_kernel_for_dispatch_key("atom_test_custom_op::kept", "CUDA")


def test_another_schema_is_refused_naming_both(library: Library) -> None:
    direct_register_custom_op("taken", double, [], fake_double, target_lib=library)
    with pytest.raises(CustomOpError) as caught:
        direct_register_custom_op("taken", scale_into, ["out"], target_lib=library)
    message = str(caught.value)
    assert "taken(Tensor x) -> Tensor" in message
    assert "taken(Tensor x, Tensor(a1!) out, float factor) -> ()" in message
    assert "scale_into" in message
    assert "double" in message


def test_registering_twice_is_harmless(library: Library) -> None:
    for _ in range(2):
        direct_register_custom_op("twice", double, [], fake_double, target_lib=library)
    assert torch.equal(torch.ops.atom_test_custom_op.twice(torch.ones(1)), torch.full((1,), 2.0))


def unannotated(x):  # type: ignore[no-untyped-def]
    return x


def takes_a_set(x: set[int]) -> None:
    return None


@pytest.mark.parametrize(("function", "mutates"), [(unannotated, []), (takes_a_set, []), (double, ["y"])])
def test_a_function_without_a_schema_is_refused_by_name(
    library: Library, function: Callable[..., Any], mutates: list[str]
) -> None:
    with pytest.raises(CustomOpError, match=rf"atom_test_custom_op::bad.*{function.__name__}"):
        direct_register_custom_op("bad", function, mutates, target_lib=library)


def test_looking_up_an_op_accepts_both_spellings(library: Library) -> None:
    direct_register_custom_op("spelled", double, [], fake_double, target_lib=library)
    dotted = op_overload("atom_test_custom_op.spelled")
    assert dotted is op_overload("atom_test_custom_op::spelled")
    assert dotted is torch.ops.atom_test_custom_op.spelled.default


@pytest.mark.parametrize("name", ["atom_test_custom_op.absent", "no_namespace", ""])
def test_looking_up_an_unknown_op_says_how_to_register_it(name: str) -> None:
    with pytest.raises(CustomOpError, match="direct_register_custom_op"):
        op_overload(name)
