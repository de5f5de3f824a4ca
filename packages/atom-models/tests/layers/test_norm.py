"""The norm against its definition in float64."""

from __future__ import annotations

import pytest
import torch

from atom.models.layers import RMSNorm


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0, 1e4])
@pytest.mark.parametrize("shape", [(1, 72), (5, 72), (3, 4, 72), (0, 72)])
def test_float32_equals_the_definition(shape, scale):
    torch.manual_seed(0)
    norm = RMSNorm(72, 1e-5)
    norm.weight.data.normal_()
    x = torch.randn(shape) * scale
    torch.testing.assert_close(norm(x), reference(x, norm.weight, 1e-5).float(), atol=1e-6, rtol=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_equal_the_definition(dtype):
    torch.manual_seed(0)
    norm = RMSNorm(72, 1e-5, dtype=dtype)
    x = torch.randn(5, 72, dtype=dtype)
    assert norm(x).dtype == dtype
    torch.testing.assert_close(norm(x).double(), reference(x, norm.weight, 1e-5), atol=2e-2, rtol=2e-2)


def test_a_row_of_zeros_stays_finite():
    assert not RMSNorm(8, 1e-6)(torch.zeros(2, 8)).any()


def test_a_compiled_norm_equals_the_plain_one():
    norm, x = RMSNorm(72, 1e-5), torch.randn(5, 72)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(norm, backend="eager", fullgraph=True)(x), norm(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adding_a_residual_first_equals_two_steps(dtype):
    torch.manual_seed(0)
    norm = RMSNorm(72, 1e-5, dtype=dtype)
    norm.weight.data.normal_()
    x, residual = torch.randn(5, 72, dtype=dtype), torch.randn(5, 72, dtype=dtype)
    before = x.clone(), residual.clone()
    normed, total = norm.add(x, residual)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, norm(total))
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])
