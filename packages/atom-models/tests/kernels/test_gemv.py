import pytest
import torch
import torch.nn.functional as F

from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.gemv import GemvConfig
from atom.models.kernels.reference import gemv as twin

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def exact(x, weight, **around):
    wide = {
        name: value.double() if isinstance(value, torch.Tensor) else value for name, value in around.items()
    }
    return twin.gemv(x.double(), weight.double(), **wide)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), [(64, 1024), (37, 576), (8, 2000)])
def test_product_equals_its_twin_in_float64(backend, random, close, n, k, dtype):
    x, weight, bias = random(1, k, dtype=dtype), random(n, k, dtype=dtype), random(n, dtype=dtype)
    close(backend.call("gemv.gemv", x, weight, bias=bias), exact(x, weight, bias=bias))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), [(12, 1024), (7, 96)])
def test_norm_before_and_residual_after(backend, random, close, n, k, dtype):
    x, weight, residual = random(1, k, dtype=dtype), random(n, k, dtype=dtype), random(1, n, dtype=dtype)
    around = {"residual": residual, "norm_weight": random(k, dtype=dtype), "eps": 1e-5}
    close(backend.call("gemv.gemv", x, weight, **around), exact(x, weight, **around))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("config", [GemvConfig(), GemvConfig(1, 256, 4)], ids=str)
def test_norm_before_and_silu_after(backend, random, close, config, dtype):
    x, weight = random(1, 512, dtype=dtype), random(2 * 11, 512, dtype=dtype, scale=0.1)
    around = {"norm_weight": random(512, dtype=dtype), "eps": 1e-5, "silu": True}
    close(backend.call("gemv.gemv", x, weight, config=config, **around), exact(x, weight, **around))


def test_twin_is_the_separate_operations(random):
    x, weight, gain = (random(*shape, dtype=torch.float64) for shape in ((2, 16), (6, 16), (16,)))
    gate, up = (F.rms_norm(x, (16,), gain, 1e-5) @ weight.t()).chunk(2, dim=1)
    torch.testing.assert_close(twin.gemv(x, weight, norm_weight=gain, eps=1e-5, silu=True), F.silu(gate) * up)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": (2, 8)}, "1 to 1 rows, got 2"),
        ({"x": (1, 9)}, r"dense \[n, 9\]"),
        ({"bias": (5,)}, r"bias must be \[4\]"),
        ({"residual": (1, 5)}, r"residual must be dense \[1, 4\]"),
        ({"norm_weight": (4,)}, r"norm_weight must be \[8\]"),
    ],
)
def test_arguments_that_do_not_fit_are_named(backend, random, change, message):
    x = random(*change.pop("x", (1, 8)))
    with pytest.raises(KernelArgumentError, match=message):
        backend.call("gemv.gemv", x, random(4, 8), **{name: random(*shape) for name, shape in change.items()})
