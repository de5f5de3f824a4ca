import pytest
import torch

from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.packed_weight import pack
from atom.models.kernels.reference import skinny_gemm as twin
from atom.models.kernels.skinny_gemm import SkinnyConfig

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def exact(x, weight, **around):
    wide = {
        name: value.double() if isinstance(value, torch.Tensor) else value for name, value in around.items()
    }
    return twin.skinny_gemm(x.double(), weight.double(), **wide)


def config(**changes):
    return SkinnyConfig(**{"block_n": 32, "block_k": 64, "num_stages": 3, **changes})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 8, 17, 64])
def test_product_equals_its_twin_in_float64(backend, random, close, rows, dtype):
    n, k = (96, 256) if not backend.is_device else (1056, 2048)
    x, weight = random(rows, k, dtype=dtype), random(n, k, dtype=dtype)
    close(backend.call("skinny_gemm.skinny_gemm", x, weight, config=config()), exact(x, weight))


@pytest.mark.parametrize("weight_first", [False, True])
@pytest.mark.parametrize("split_k", [1, 3])
@pytest.mark.parametrize(("n", "k"), [(96, 512), (50, 200)])
def test_split_orientation_and_ragged_edges(backend, random, close, n, k, split_k, weight_first):
    x, weight = random(5, k), random(n, k)
    around = {"bias": random(n), "residual": random(5, n)}
    chosen = config(split_k=split_k, weight_first=weight_first)
    close(
        backend.call("skinny_gemm.skinny_gemm", x, weight, config=chosen, **around),
        exact(x, weight, **around),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight_first", [False, True])
@pytest.mark.parametrize("half", [40, 64])
def test_silu_of_one_half_times_the_other(backend, random, close, half, weight_first, dtype):
    x, weight = random(6, 192, dtype=dtype), random(2 * half, 192, dtype=dtype, scale=0.1)
    chosen = config(weight_first=weight_first)
    actual = backend.call("skinny_gemm.skinny_gemm", x, weight, silu=True, config=chosen)
    close(actual, exact(x, weight, silu=True))


@pytest.mark.parametrize("silu", [False, True])
def test_packed_weights_give_the_same_bits(backend, random, silu):
    x, weight = random(4, 256, dtype=torch.float16), random(64, 256, dtype=torch.float16)
    chosen = config(split_k=1 if silu else 2)
    plain = backend.call("skinny_gemm.skinny_gemm", x, weight, silu=silu, config=chosen)
    packed = backend.call("skinny_gemm.skinny_gemm", x, pack(weight, 32, 64), silu=silu, config=chosen)
    assert torch.equal(plain, packed)


def test_packed_tiles_across_the_halves_are_refused(backend, random):
    with pytest.raises(KernelArgumentError, match="straddle"):
        backend.call("skinny_gemm.skinny_gemm", random(2, 64), pack(random(96, 64), 32, 64), silu=True)


def test_strided_rows_are_read_in_place(backend, random, close):
    wide, weight = random(3, 400), random(32, 128)
    x = wide[:, 128:256]
    close(backend.call("skinny_gemm.skinny_gemm", x, weight, config=config()), exact(x, weight))


def test_split_with_silu_is_refused(backend, random):
    with pytest.raises(KernelArgumentError, match="split_k=1"):
        backend.call(
            "skinny_gemm.skinny_gemm", random(2, 64), random(64, 64), silu=True, config=config(split_k=2)
        )


def test_more_rows_than_a_tile_are_refused(backend, random):
    with pytest.raises(KernelArgumentError, match="1 to 64 rows, got 65"):
        backend.call("skinny_gemm.skinny_gemm", random(65, 64), random(64, 64))
