"""Sizes, kinds of arguments, and what is traced for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from atom.compile import BufferUpdateError, ShapeError, TracingError, compilation_counter

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = [torch.randn(n, 8, generator=torch.Generator().manual_seed(n)) for n in range(65)]


def check(model: Any, *sizes: int) -> None:
    for size in sizes:
        torch.testing.assert_close(model(ROWS[size]), model.forward(ROWS[size]), rtol=0, atol=0)


def plain(self: Any, x: torch.Tensor) -> Any:
    y = torch.ops.atom_test.shift(x @ self.w)
    return y + self.b


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("sizes", [(1, 2, 8, 3, 1), (2, 1, 64, 1), (7, 0, 1)])
def test_one_general_compilation_serves_every_size(
    config_for: Any, model_of: Any, sizes: tuple[int, ...]
) -> None:
    model = model_of(plain, config_for())
    check(model, *sizes)
    assert len(model.compiled_codes) == 1
    assert compilation_counter.num_backend_compilations == 2


def mixed(self: Any, x: torch.Tensor) -> Any:
    weights_only = torch.ops.atom_test.shift(self.w.t() * 2)
    one_row = torch.ops.atom_test.shift(x[:1].sum(0, keepdim=True) + 1)
    return torch.ops.atom_test.shift(x @ weights_only.sin()) + one_row.cos()


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("sizes", [(1, 2, 8, 3, 1), (2, 8, 1)])
def test_pieces_without_a_size_or_with_one_row_only_serve_every_size(
    config_for: Any, model_of: Any, sizes: tuple[int, ...]
) -> None:
    model = model_of(mixed, config_for())
    check(model, *sizes)
    assert len(model.compiled_codes) == 1


@pytest.mark.usefixtures("compilers")
def test_a_first_batch_as_large_as_another_dimension_stays_general(config_for: Any, model_of: Any) -> None:
    def square(self: Any, x: torch.Tensor) -> Any:
        return torch.ops.atom_test.shift(x @ self.w) @ self.w.t() + self.b

    model = model_of(square, config_for())
    check(model, 8, 4, 16, 1)
    assert len(model.compiled_codes) == 1


@pytest.mark.usefixtures("compilers")
def test_a_forward_that_does_something_else_for_one_row_gets_a_trace_for_it(
    config_for: Any, model_of: Any
) -> None:
    def squeezes(self: Any, x: torch.Tensor) -> Any:
        y = torch.ops.atom_test.shift(x).squeeze()
        return y * 3 if y.dim() == 2 else y - 1

    model = model_of(squeezes, config_for())
    check(model, 1, 2, 8, 1)
    assert len(model.compiled_codes) == 2


@pytest.mark.usefixtures("compilers")
def test_a_branch_on_the_size_gets_a_trace_for_each_side(config_for: Any, model_of: Any) -> None:
    def branches(self: Any, x: torch.Tensor) -> Any:
        return torch.ops.atom_test.shift(x * 2 if x.shape[0] > 16 else x - 2)

    model = model_of(branches, config_for())
    check(model, 20, 3, 64, 16, 17, 1)
    assert len(model.compiled_codes) == 2


@pytest.mark.usefixtures("compilers")
def test_one_excluded_size_gets_a_trace_of_its_own(config_for: Any, model_of: Any) -> None:
    def excludes(self: Any, x: torch.Tensor) -> Any:
        return torch.ops.atom_test.shift(x + 1 if x.shape[0] % 7 else x - 1)

    model = model_of(excludes, config_for())
    check(model, 6, 7, 14, 13)
    assert len(model.compiled_codes) == 2


@pytest.mark.usefixtures("compilers")
def test_a_dimension_that_becomes_constant_is_named_with_its_source(config_for: Any, model_of: Any) -> None:
    def fixed(self: Any, x: torch.Tensor) -> Any:
        return torch.ops.atom_test.shift(x.reshape(8, 8) @ self.w)

    with pytest.raises(ShapeError, match=r"dimension 0 of 'x'.*constant 8.*test_compiled_forward\.py"):
        model_of(fixed, config_for())(ROWS[8])


@pytest.mark.usefixtures("compilers")
def test_number_format_layout_and_rank_get_traces_of_their_own(config_for: Any, model_of: Any) -> None:
    def kinds(self: Any, x: torch.Tensor) -> Any:
        return torch.ops.atom_test.shift(x * 2 + 1)

    model = model_of(kinds, config_for())
    for x in (ROWS[4], ROWS[4].double(), ROWS[8].t(), torch.randn(4, 2, 8), ROWS[5]):
        assert torch.equal(model(x), model.forward(x))
    assert len(model.compiled_codes) == 4


@pytest.mark.usefixtures("compilers")
def test_the_callers_tensors_stay_unmarked_and_the_forward_does_not_run_while_tracing(
    config_for: Any, model_of: Any
) -> None:
    def writes(self: Any, x: torch.Tensor) -> Any:
        torch.ops.atom_test.write_into(x, x)
        return x + 1

    model = model_of(writes, config_for())
    x = torch.ones(3, 8)
    assert torch.equal(model(x), torch.full((3, 8), 6.0))
    assert torch.equal(x, torch.full((3, 8), 5.0))
    assert not hasattr(x, "_dynamo_dynamic_indices")


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("level", [2, 3])
def test_a_model_that_cannot_be_traced_names_line_and_level(
    config_for: Any, model_of: Any, level: int
) -> None:
    def breaks(self: Any, x: torch.Tensor) -> Any:
        if x.sum() > 0:  # the line that breaks
            return x
        return -x

    with pytest.raises(TracingError, match=r"test_compiled_forward\.py:\d+.*the line that breaks.*level 0"):
        model_of(breaks, config_for(level))(ROWS[3])


@pytest.mark.usefixtures("compilers")
def test_assigning_a_buffer_is_refused_by_buffer_and_class(config_for: Any) -> None:
    from torch import nn

    from atom.compile import support_torch_compile

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))
            self.register_buffer("other", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = self.seen + 1
            return x + self.seen + self.other

    @support_torch_compile
    class Model(nn.Module):
        def __init__(self, atom_config: Any) -> None:
            super().__init__()
            self.inner = Counting()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * 2

    with pytest.raises(BufferUpdateError, match=r"Counting.*'seen'") as caught:
        Model(atom_config=config_for())(ROWS[3])
    assert "other" not in str(caught.value)


@pytest.mark.usefixtures("compilers")
def test_two_instances_have_traces_and_weights_of_their_own(config_for: Any, model_of: Any) -> None:
    config = config_for()
    first, second = model_of(plain, config), model_of(plain, config)
    second.w.mul_(3)
    for size in (4, 9):
        check(first, size)
        check(second, size)
    assert first.compiled_codes[0] is not second.compiled_codes[0]
    assert compilation_counter.num_backend_compilations == 2


@pytest.mark.usefixtures("compilers")
def test_dispatch_to_code_calls_the_compiled_bytecode(config_for: Any, model_of: Any) -> None:
    model = model_of(plain, config_for())
    with pytest.raises(IndexError), model.dispatch_to_code(0):
        pass
    expected = model(ROWS[5])
    with model.dispatch_to_code(0) as forward:
        assert torch.equal(model.forward(ROWS[5]), expected)
        assert torch.equal(forward(ROWS[5]), expected)
    assert "forward" not in vars(model)


def test_levels_0_and_1_have_no_code(config_for: Any, model_of: Any) -> None:
    model = model_of(plain, config_for(1))
    assert model.compiled_codes == []
    with pytest.raises(IndexError, match="levels 0 and 1"), model.dispatch_to_code(0):
        pass


@pytest.mark.usefixtures("compilers")
def test_a_recorder_is_handed_each_piece_as_one_call(config_for: Any, stack_of: Any) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.pieces: list[Callable[..., Any]] = []
            self.ops: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.ops.append(str(func))
            return func(*args, **(kwargs or {}))

        def opaque_call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            self.pieces.append(fn)
            with torch.utils._python_dispatch._disable_current_modes():
                return fn(*args, **kwargs)

    model = stack_of(config_for(), layers=2)
    ids = torch.arange(5)
    recorder = Recorder()
    with recorder:  # the first call compiles, although a mode is active
        result = model(ids)
    assert torch.equal(result, model.forward(ids))
    assert len(recorder.pieces) == 3
    assert recorder.ops == ["atom_test.attend.default"] * 2


@pytest.mark.usefixtures("compilers")
def test_level_2_with_a_region_inside_is_recorded_uncompiled_and_says_so(
    config_for: Any, model_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    from atom.compile import direct_register_custom_op

    def region(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def fake(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    region.__atom_region__ = True  # type: ignore[attr-defined]
    direct_register_custom_op("atom_test_region_at_2", region, [], fake)

    class Recorder(TorchDispatchMode):
        ops = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.ops += 1
            return func(*args, **(kwargs or {}))

        def opaque_call(self, fn: Any, args: Any, kwargs: Any) -> Any:
            raise AssertionError("not compiled, so not opaque")

    model = model_of(lambda self, x: torch.ops.aiter.atom_test_region_at_2(x * 2), config_for(2))
    expected = model(ROWS[3])
    with Recorder() as recorder:
        result = model(ROWS[3])
    assert torch.equal(result, expected)
    assert recorder.ops == 2
    assert "aiter.atom_test_region_at_2" in caplog.text
