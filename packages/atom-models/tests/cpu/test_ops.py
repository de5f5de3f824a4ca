"""A dispatch mode sees every kernel, with shapes, and what it replays equals the direct call."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from atom.graphs import ReqGraph, TapeRecorder
from atom.models.cpu import CpuKernels, cpu_kernels, ops
from atom.models.layers import Linear

pytestmark = pytest.mark.skipif(cpu_kernels() is None, reason="needs a C compiler")


class Heard(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


def attention_arguments():
    cache = torch.randn(3, 16, 1, 16)
    tables, lens = torch.tensor([[1], [2]], dtype=torch.int32), torch.tensor([3, 16], dtype=torch.int32)
    return torch.randn(2, 2, 16), cache, cache.clone(), tables, lens, torch.zeros(2, 2, 16), 1, 0.25


CALLS = {
    "rms_norm": lambda: (torch.randn(3, 8), torch.randn(8), 1e-5),
    "add_rms_norm": lambda: (torch.randn(3, 8), torch.randn(3, 8), torch.randn(8), 1e-5),
    "silu_mul": lambda: (torch.randn(3, 8),),
    "rotate": lambda: (torch.randn(3, 2, 8), torch.randn(3, 1, 8), torch.randn(3, 1, 8)),
    "paged_attention": attention_arguments,
    "write_cache": lambda: (torch.zeros(3, 16, 1, 16), torch.randn(2, 1, 16), torch.tensor([5, 40])),
}
WRITTEN = {"paged_attention": 5, "write_cache": 0}


def results(name, arguments) -> tuple[torch.Tensor, ...]:
    returned = getattr(ops, name)(*arguments)
    if name in WRITTEN:
        return (arguments[WRITTEN[name]],)
    return returned if isinstance(returned, tuple) else (returned,)


@pytest.mark.parametrize("name", CALLS)
def test_a_dispatch_mode_sees_one_operation_and_gets_the_same_numbers(name):
    torch.manual_seed(0)
    arguments = CALLS[name]()
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    direct = results(name, arguments)
    with Heard() as heard:
        seen = results(name, copies)
    assert heard.ops[-1] == f"aiter.cpu_{name}.default"
    for one, other in zip(direct, seen, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", CALLS)
def test_shapes_are_known_without_running(name):
    torch.manual_seed(0)
    arguments = CALLS[name]()
    real = results(name, [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments])
    with FakeTensorMode() as mode:
        fake = results(name, [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments])
    for one, other in zip(real, fake, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype


def test_a_compiler_is_left_to_torch_and_other_numbers_too():
    x = torch.randn(2, 8)
    assert ops.has_kernel(x)
    assert not ops.has_kernel(x.double())
    assert not ops.has_kernel(x.bfloat16())
    torch._dynamo.reset()
    asked = torch.compile(lambda x: x + (1 if ops.has_kernel(x) else 0), backend="eager", fullgraph=True)
    assert torch.equal(asked(x), x)


def fill(arguments, seed):
    """Other numbers at the same addresses; integers stay, they are places."""
    generator = torch.Generator().manual_seed(seed)
    for x in arguments:
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            x.copy_(torch.randn(x.shape, generator=generator))


@pytest.mark.parametrize("name", CALLS)
def test_a_replay_calls_the_kernel_by_address_and_equals_eager(name, monkeypatch):
    arguments = CALLS[name]()
    graph = ReqGraph(recorder=TapeRecorder())
    graph.record(lambda: results(name, arguments), bucket=(1, 0))
    run = CpuKernels.run
    monkeypatch.setattr(CpuKernels, "run", lambda *_: pytest.fail("the op was called"))
    for seed in (1, 2):
        fill(arguments, seed)
        copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        replayed = [x.clone() for x in graph.replay((1, 0))]
        with monkeypatch.context() as context:
            context.setattr(CpuKernels, "run", run)
            expected = results(name, copies)
        for one, other in zip(replayed, expected, strict=True):
            assert torch.equal(one, other)


def test_rows_that_lie_apart_are_read_where_they_lie():
    fused = torch.randn(3, 4, 8)
    cos, sin = torch.randn(3, 1, 8), torch.randn(3, 1, 8)
    graph = ReqGraph(recorder=TapeRecorder())
    graph.record(lambda: ops.rotate(fused[:, 1:3], cos, sin), bucket=(3, 0))
    fused.normal_()
    assert torch.equal(graph.replay((3, 0)), ops.rotate(fused[:, 1:3].clone(), cos, sin))


def test_a_packed_product_is_replayed_by_address():
    layer = Linear(12, 20, bias=True)
    layer.weight.data.normal_()
    layer.bias.data.normal_()
    layer.pack()
    x = torch.randn(3, 12)
    graph = ReqGraph(recorder=TapeRecorder())
    graph.record(lambda: layer(x), bucket=(3, 0))
    x.normal_()
    assert torch.equal(graph.replay((3, 0)), layer(x))


def test_a_replay_checks_block_numbers_too():
    arguments = attention_arguments()
    graph = ReqGraph(recorder=TapeRecorder())
    graph.record(lambda: results("paged_attention", arguments), bucket=(2, 0))
    arguments[3][1, 0] = 3
    with pytest.raises(IndexError, match="block number is out of range"):
        graph.replay((2, 0))
