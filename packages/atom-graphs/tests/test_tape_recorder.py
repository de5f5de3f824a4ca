from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from atom.graphs import (
    RegionRefusedError,
    ReqGraph,
    TapeRefusedError,
    TokenGraph,
    eager_region,
    host_data,
    opaque_call,
    register_generator,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def check(tape: Any, forward: Any, *, rows: int = 4) -> TokenGraph:
    """Records, replays on new data, and compares with eager to the last bit."""
    graph = TokenGraph(forward, recorder=tape.recorder)
    graph.record(tape.randn(rows, 4))
    for seed in (1, 2):
        tape.disturb()
        x = tape.randn(rows, 4, seed=seed)
        with torch.no_grad():
            want = forward(x.clone())
        assert torch.equal(graph.replay(x), want)
    return graph


class TestRefusals:
    @pytest.mark.parametrize(
        ("what", "op"),
        [
            (lambda x: x * x.sum().item(), "_local_scalar_dense"),
            (lambda x: x * float(x[0, 0]), "_local_scalar_dense"),
            (lambda x: x if x.sum() > 0 else -x, "_local_scalar_dense"),
            (lambda x: x.cpu() * 2, "Tensor.cpu"),
            (lambda x: x.to("cpu") * 2, "Tensor.to"),
            (lambda x: x * len(x.tolist()), "Tensor.tolist"),
            (lambda x: x[x > 0], "aten.index.Tensor with a mask"),
            (lambda x: x.nonzero(), "nonzero"),
            (lambda x: torch.masked_select(x, x > 0), "masked_select"),
            (lambda x: torch.unique(x), "unique"),
            (lambda x: x.clone().index_put_((x > 0,), x.sum(1)[:1]), "index_put_"),
            (
                lambda x: torch.repeat_interleave(x, torch.ones_like(x[:, 0]).long(), dim=0),
                "repeat_interleave",
            ),
            (lambda x: x * torch.equal(x, x), "equal"),
            (lambda x: x + torch.rand_like(x), "rand_like"),
            (lambda x: torch.nn.functional.dropout(x, 0.5), "bernoulli|native_dropout"),
            (lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device), "lift_fresh"),
            (lambda x: x * x.data_ptr(), "Tensor.data_ptr"),
        ],
    )
    def test_what_a_capture_would_refuse_or_freeze_names_op_and_line(
        self, tape: Any, what: Any, op: str
    ) -> None:
        line = inspect.getsourcelines(what)[1]
        graph = TokenGraph(what, recorder=tape.recorder)
        with pytest.raises(
            TapeRefusedError, match=rf"({op}).* at .*test_tape_recorder.py:{line} in <lambda>"
        ):
            graph.record(tape.randn(4, 4))
        assert graph.captured_sizes() == []
        assert not tape.pool.arena.live

    def test_numpy_is_a_host_read(self) -> None:
        graph = TokenGraph(lambda x: x + float(x.numpy().sum()))
        with pytest.raises(TapeRefusedError, match=r"Tensor\.numpy"):
            graph.record(torch.randn(2, 2))

    def test_a_tensor_kept_across_replays_is_refused_by_the_op_that_made_it(self, tape: Any) -> None:
        kept: list[torch.Tensor] = []

        def forward(x: torch.Tensor) -> torch.Tensor:
            kept.append(x * 2)
            return kept[-1] + 1

        graph = TokenGraph(forward, recorder=tape.recorder)
        with pytest.raises(
            TapeRefusedError, match=r"aten\.mul\.Tensor at .*test_tape_recorder.py.* outlives"
        ):
            graph.record(tape.randn(2, 2))
        kept.clear()
        assert not tape.pool.arena.live

    def test_what_a_region_keeps_of_its_arguments_is_its_own_affair(self, tape: Any) -> None:
        state: dict[str, torch.Tensor] = {}

        @eager_region
        def put(x: torch.Tensor) -> None:
            state["x"] = x

        @eager_region
        def get(y: torch.Tensor) -> torch.Tensor:
            return state["x"] + y

        def forward(x: torch.Tensor) -> torch.Tensor:
            put(x * 2)
            return get(torch.tanh(torch.tanh(x)))

        check(tape, forward)

    def test_what_does_not_draw_needs_no_generator(self, tape: Any) -> None:
        attention = torch.nn.functional.scaled_dot_product_attention

        def forward(x: torch.Tensor) -> torch.Tensor:
            q = x.view(1, 1, *x.shape)
            dropped = torch.nn.functional.dropout(x, 0.5, training=False)
            return attention(q, q, q, dropout_p=0.0)[0, 0] + dropped

        check(tape, forward)


class TestRandomNumbers:
    def test_a_registered_generator_advances_with_every_replay(self) -> None:
        generator = register_generator(torch.Generator().manual_seed(3))

        def forward(x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(x.shape, generator=generator)

        graph = TokenGraph(forward)
        x = torch.zeros(2, 2)
        drawn = [graph.record(x).clone()] + [graph.replay(x).clone() for _ in range(3)]
        generator.manual_seed(3)
        assert torch.equal(torch.cat(drawn), torch.cat([forward(x) for _ in range(4)]))


class TestHostData:
    def test_marked_tensors_may_be_read_and_stay_frozen(self) -> None:
        lengths = host_data(torch.tensor([2, 3]))

        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * int((lengths + 1).sum()) + lengths.tolist()[0]

        graph = TokenGraph(forward)
        x = torch.randn(2, 2)
        graph.record(x)
        lengths.fill_(100)
        assert torch.equal(graph.replay(x), x * 7 + 2)


class TestReplay:
    def test_a_tensor_from_outside_is_read_at_its_recorded_address(self, tape: Any) -> None:
        scale = torch.ones(4, device=tape.device)
        graph = TokenGraph(lambda x: x * scale, recorder=tape.recorder)
        x = tape.randn(2, 4)
        graph.record(x)
        scale.fill_(3)
        assert torch.equal(graph.replay(x), x * 3)

    @pytest.mark.parametrize("inference", [True, False])
    def test_a_transformer_block_equals_eager(self, tape: Any, inference: bool) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, device=tape.device).eval()
        cache = torch.zeros(4, 4, device=tape.device)

        def forward(x: torch.Tensor) -> torch.Tensor:
            cache.index_copy_(0, torch.arange(4, device=x.device), x)
            y: torch.Tensor = layer(x[None] + cache)[0]
            return y.reshape(2, -1).contiguous().view(4, 4)

        with torch.inference_mode(inference):
            check(tape, forward)

    def test_split_chunk_and_unbind_are_views(self, tape: Any) -> None:
        def forward(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            a, b = y.split(2, 1)
            a.add_(1)
            first, *_ = b.unbind(0)
            first.mul_(3)
            return torch.cat([y, torch.stack(y.chunk(2, 1)).sum(0)], 1)

        check(tape, forward)

    def test_ops_with_several_results(self, tape: Any) -> None:
        def forward(x: torch.Tensor) -> torch.Tensor:
            values, order = (x * 2).sort(1)
            top, _ = torch.topk(values, 2, dim=1)
            return values * order + top.sum(1, keepdim=True)

        check(tape, forward)

    def test_memory_given_by_empty_is_written_before_it_is_read(self, tape: Any) -> None:
        def forward(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty(x.shape, device=x.device)
            return torch.add(x, 1, out=out) * torch.zeros_like(x).add_(2) + torch.full(
                (4,), 2.0, device=x.device
            )

        check(tape, forward)

    def test_modes_the_model_pushes_keep_their_effect_inside_a_region(self) -> None:
        @eager_region
        def where(x: torch.Tensor) -> torch.Tensor:
            assert torch.empty(1).device.type == "meta"
            return x + 1

        def forward(x: torch.Tensor) -> torch.Tensor:
            with torch.device("meta"):
                y = where(x)
            assert torch.empty(1).device.type == "cpu"
            return y * 2

        graph = TokenGraph(forward)
        graph.record(torch.zeros(2, 2))
        assert graph.describe().recordings[0].regions == (f"{where.__qualname__}",)


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    made = torch.library.Library("atom_tape_test", "FRAGMENT")
    yield made
    made._destroy()


def define(library: torch.library.Library, name: str, fn: Any, mutates: tuple[str, ...] = ()) -> Any:
    schema = torch.library.infer_schema(fn, mutates_args=mutates)
    library.define(name + schema)
    for key in ("CPU", "CUDA"):
        library.impl(name, fn, key)
    return getattr(torch.ops.atom_tape_test, name)


class TestCustomOps:
    def test_an_op_is_one_entry_whatever_its_implementation_calls(self, tape: Any, library: Any) -> None:
        def kernel(x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x) * x.sum().item()

        op = define(library, "kernel", kernel)
        graph = check(tape, lambda x: op(x + 1) * 2)
        assert graph.describe().recordings[0].work == (3,)

    def test_an_op_that_writes_an_argument(self, tape: Any, library: Any) -> None:
        def write(x: torch.Tensor, out: torch.Tensor) -> None:
            out.copy_(x).mul_(3)

        op = define(library, "write", write, mutates=("out",))

        def forward(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            op(x + 1, out)
            return out - 1

        check(tape, forward)

    def test_an_op_with_nothing_to_show_is_replayed_for_its_effect(self, tape: Any, library: Any) -> None:
        seen: list[float] = []

        def note(x: torch.Tensor) -> None:
            seen.append(x.sum().item())

        op = define(library, "note", note)

        def forward(x: torch.Tensor) -> torch.Tensor:
            op(x + 1)
            return x * 2

        graph = TokenGraph(forward, recorder=tape.recorder)
        graph.record(torch.zeros(2, 2, device=tape.device))
        graph.replay(torch.ones(2, 2, device=tape.device))
        assert seen == [4.0, 8.0]

    def test_an_op_implemented_by_a_region_is_the_region_node(self, tape: Any, library: Any) -> None:
        factor = {"value": 2.0}

        def attend(x: torch.Tensor, out: torch.Tensor) -> None:
            out.copy_(x * factor["value"])

        op = define(library, "attend", eager_region(attend), mutates=("out",))

        def forward(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            op(x + 1, out)
            return out - 1

        graph = check(tape, forward)
        report = graph.describe().recordings[0]
        assert len(report.regions) == 1
        assert report.work == (1, 1)
        factor["value"] = 5.0
        x = tape.randn(4, 4, seed=8)
        assert torch.equal(graph.replay(x), (x + 1) * 5 - 1)

    def test_an_op_that_returns_what_its_region_returns(self, tape: Any, library: Any) -> None:
        def made(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        op = define(library, "made", eager_region(made))
        check(tape, lambda x: op(x + 1) - 1)

    def test_an_op_that_does_more_than_its_region_is_refused(self, tape: Any, library: Any) -> None:
        @eager_region
        def part(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        def more(x: torch.Tensor) -> torch.Tensor:
            return part(x + 1)

        op = define(library, "more", more)
        with pytest.raises(
            RegionRefusedError, match=r"atom_tape_test\.more\.default does more than call region"
        ):
            TokenGraph(lambda x: op(x * 2), recorder=tape.recorder).record(tape.randn(2, 2))

    def test_a_bucket_fixed_region_behind_an_op_is_written_down_op_by_op(
        self, tape: Any, library: Any
    ) -> None:
        ran: list[int] = []

        def fixed(x: torch.Tensor, out: torch.Tensor) -> None:
            ran.append(1)
            out.copy_(torch.tanh(x) * 2)

        op = define(library, "fixed", eager_region(fixed, bucket_fixed=True), mutates=("out",))
        x = tape.randn(2, 2)

        def forward() -> torch.Tensor:
            out = torch.empty_like(x)
            op(x + 1, out)
            return out * 3

        graph = ReqGraph(recorder=tape.recorder)
        graph.record(forward, bucket=(2, 0))
        x.copy_(tape.randn(2, 2, seed=4))
        got = graph.replay((2, 0))
        assert torch.equal(got, torch.tanh(x + 1) * 2 * 3)
        assert len(ran) == 1  # Python did not run again
        assert graph.describe().recordings[0].work == (5,)

    def test_a_mark_keeps_name_signature_and_resolved_annotations(self) -> None:
        def attend(x: torch.Tensor, layer: int = 3) -> torch.Tensor:
            """Attends."""
            return x * layer

        marked = eager_region(attend)
        assert (marked.__name__, marked.__doc__) == ("attend", "Attends.")
        assert inspect.signature(marked) == inspect.signature(attend, eval_str=True)
        assert torch.library.infer_schema(marked, mutates_args=()) == "(Tensor x, SymInt layer=3) -> Tensor"


class TestOpaqueCalls:
    def test_a_compiled_callable_is_called_whole_at_every_replay(self) -> None:
        ran: list[str] = []
        piece = opaque_call(counted_compile(lambda x: torch.tanh(x) * 2 + 1, ran))
        graph = check_cpu(lambda x: piece(x + 1) - 1)
        assert graph.describe().recordings[0].work == (3,)
        assert ran[:2] == ["compiled", "ran"]  # while recording
        assert ran.count("ran") == 5  # and twice replayed and eager

    def test_compiled_code_inside_a_region_runs_compiled_while_recording_too(self) -> None:
        ran: list[str] = []
        compiled = counted_compile(lambda x: torch.sin(x) * 2 + 1, ran)
        region = eager_region(lambda x: compiled(x))
        check_cpu(lambda x: region(x + 1) - 1)
        assert ran[:2] == ["compiled", "ran"]
        assert ran.count("ran") == 5

    def test_compiled_code_in_a_segment_is_written_down_op_by_op(self) -> None:
        ran: list[str] = []
        compiled = counted_compile(lambda x: torch.cos(x) * 2 + 1, ran)
        graph = TokenGraph(lambda x: compiled(x + 1))
        graph.record(torch.zeros(2, 2))
        assert graph.describe().recordings[0].work == (4,)
        x = torch.randn(2, 2)
        assert torch.equal(graph.replay(x), torch.cos(x + 1) * 2 + 1)

    def test_a_piece_may_find_the_tape_on_the_mode_stack_without_importing_it(self) -> None:
        def piece(x: torch.Tensor) -> torch.Tensor:
            ask = getattr(_get_current_dispatch_mode(), "opaque_call", None)
            return torch.tanh(x) * 2 if ask is None else ask(lambda y: torch.tanh(y) * 2, (x,), {})

        graph = check_cpu(lambda x: piece(x + 1))
        assert graph.describe().recordings[0].work == (2,)

    def test_several_results_and_writes_inside(self, tape: Any) -> None:
        @opaque_call
        def piece(x: torch.Tensor, buffers: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            buffers.pop().add_(1)
            return x[:, :2], x * 2

        def forward(x: torch.Tensor) -> torch.Tensor:
            buffer = torch.zeros_like(x)
            part, twice = piece(x + 1, [buffer])
            return torch.cat([part, twice, buffer], 1)

        check(tape, forward)

    def test_outside_of_a_recording_it_is_a_plain_call(self) -> None:
        assert opaque_call(lambda a, b=1: a + b)(2, b=5) == 7

    def test_a_region_inside_runs_with_the_call(self, tape: Any) -> None:
        ran: list[int] = []

        @eager_region
        def region(x: torch.Tensor) -> torch.Tensor:
            ran.append(1)
            return x + 1

        piece = opaque_call(lambda x: region(x) * 2)
        graph = check(tape, lambda x: piece(x * 3))
        assert graph.describe().recordings[0].regions == ()
        assert len(ran) == 5  # once recorded, twice replayed, twice eager


def counted_compile(fn: Any, ran: list[str]) -> Any:
    """`fn` compiled by a backend that notes each compilation and each run."""

    def backend(module: Any, _: Any) -> Any:
        ran.append("compiled")

        def run(*args: Any) -> Any:
            ran.append("ran")
            return module.forward(*args)

        return run

    return torch.compile(fn, backend=backend, dynamic=False)


def check_cpu(forward: Any) -> TokenGraph:
    graph = TokenGraph(forward)
    graph.record(torch.randn(4, 4))
    for _ in range(2):
        x = torch.randn(4, 4)
        assert torch.equal(graph.replay(x), forward(x))
    return graph
