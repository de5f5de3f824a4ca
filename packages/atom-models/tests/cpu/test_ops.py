"""A dispatch mode sees every kernel, with shapes, and what it replays equals the direct call."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from atom.models.cpu import cpu_kernels, ops

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
