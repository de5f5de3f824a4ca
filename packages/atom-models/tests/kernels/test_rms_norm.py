import pytest
import torch
import torch.nn.functional as F

from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.reference import rms_norm as twin

EPS = 1e-5
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 576), (3, 64), (129, 96), (2, 4096)])
def test_norm_equals_its_twin_in_float64(backend, random, close, rows, hidden, dtype):
    x, weight = random(rows, hidden, dtype=dtype, scale=3.0), random(hidden, dtype=dtype)

    actual = backend.call("rms_norm.rms_norm", x, weight, EPS)

    assert actual.dtype == dtype
    close(actual, twin.rms_norm(x.double(), weight.double(), EPS))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 576), (17, 128)])
def test_add_norm_gives_the_sum_and_the_norm_of_the_rounded_sum(backend, random, close, rows, hidden, dtype):
    x, residual, weight = random(rows, hidden, dtype=dtype), random(rows, hidden, dtype=dtype), random(hidden)

    normed, total = backend.call("rms_norm.add_rms_norm", x, residual, weight, EPS)

    # the interpreter cuts bf16 off where a device rounds: one step of the format apart
    step = 2**-7 if dtype == torch.bfloat16 and not backend.is_device else 0
    torch.testing.assert_close(total, x + residual, rtol=step, atol=0)
    close(normed, twin.rms_norm(total.double(), weight.double(), EPS))


def test_head_norm_reads_a_slice_of_a_fused_projection(backend, random, close):
    fused = random(5, 12 * 64)
    heads = fused[:, : 8 * 64].view(5, 8, 64)
    weight = random(64)

    actual = backend.call("rms_norm.rms_norm", heads, weight, EPS)

    close(actual, twin.rms_norm(heads.double(), weight.double(), EPS))


def test_twin_is_torchs_own_norm(random):
    x, weight = random(4, 48, dtype=torch.float64), random(48, dtype=torch.float64)
    torch.testing.assert_close(twin.rms_norm(x, weight, EPS), F.rms_norm(x, (48,), weight, EPS))


def test_columns_that_are_not_dense_are_refused(backend, random):
    with pytest.raises(KernelArgumentError, match="dense rows"):
        backend.call("rms_norm.rms_norm", random(8, 8).t(), random(8), EPS)


def test_weight_of_another_width_is_refused(backend, random):
    with pytest.raises(KernelArgumentError, match=r"weight must be \[8\]"):
        backend.call("rms_norm.rms_norm", random(2, 8), random(9), EPS)
