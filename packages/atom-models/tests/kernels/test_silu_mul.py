import pytest
import torch
import torch.nn.functional as F

from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.reference import silu_mul as twin


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "width"), [(1, 1536), (129, 40), (3, 1025)])
def test_product_equals_its_twin_in_float64(backend, random, close, rows, width, dtype):
    gate_up = random(rows, 2 * width, dtype=dtype, scale=4.0)

    actual = backend.call("silu_mul.silu_mul", gate_up)

    close(actual, twin.silu_mul(gate_up.double()))


def test_twin_multiplies_silu_of_the_first_half_by_the_second(random):
    gate_up = random(2, 10, dtype=torch.float64)
    torch.testing.assert_close(twin.silu_mul(gate_up), F.silu(gate_up[:, :5]) * gate_up[:, 5:])


def test_odd_width_is_refused(backend, random):
    with pytest.raises(KernelArgumentError, match="2n"):
        backend.call("silu_mul.silu_mul", random(2, 7))
