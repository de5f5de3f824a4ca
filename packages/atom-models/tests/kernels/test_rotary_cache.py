import pytest
import torch

from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.reference import rotary_cache as twin

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
FP8 = torch.float8_e4m3fnuz if torch.version.hip else torch.float8_e4m3fn


@pytest.fixture
def step(random, backend):
    """query, key, value sliced from one fused projection, positions, cosines and sines."""

    def make(rows, heads, kv_heads, head_dim, rotary_dim, dtype):
        fused = random(rows, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
        query, key, value = fused.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=1)
        positions = torch.randint(0, 50, (rows,), generator=random.generator).to(backend.device)
        angles = torch.rand(50, rotary_dim // 2, generator=random.generator) * 6
        cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1).to(backend.device)
        split = [t.unflatten(1, (-1, head_dim)) for t in (query, key, value)]
        return *split, positions, cos_sin

    return make


def slots_for(rows, cells, generator, device):
    """Distinct slots outside block 0, except that the last row pads."""
    slots = torch.randperm(cells - 16, generator=generator)[:rows] + 16
    slots[-1] = 3
    return slots.to(device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "head_dim", "rotary_dim"),
    [(1, 9, 3, 64, 64), (5, 8, 1, 128, 128), (3, 2, 2, 256, 64), (2, 16, 2, 64, 24)],
)
def test_rotates_in_place_and_writes_live_slots(
    backend, random, close, step, rows, heads, kv_heads, head_dim, rotary_dim, interleaved, dtype
):
    query, key, value, positions, cos_sin = step(rows, heads, kv_heads, head_dim, rotary_dim, dtype)
    exact_q, exact_k = query.double(), key.double()
    twin.rotary(exact_q, exact_k, positions, cos_sin.double(), interleaved=interleaved)
    k_cache, v_cache = (random(6, 16, kv_heads, head_dim, dtype=dtype) for _ in range(2))
    before = k_cache.clone(), v_cache.clone()
    slots = slots_for(rows, 96, random.generator, backend.device)

    backend.call(
        "rotary_cache.rotary_and_cache", query, key, value, positions, cos_sin, k_cache, v_cache, slots,
        interleaved=interleaved,
    )  # fmt: skip

    close(query, exact_q)
    close(key, exact_k)
    for cache, old, rows_written in ((k_cache, before[0], key), (v_cache, before[1], value)):
        flat, untouched = cache.flatten(0, 1), old.flatten(0, 1)
        assert torch.equal(flat[slots], rows_written)
        keep = torch.ones(96, dtype=torch.bool, device=backend.device)
        keep[slots] = False
        assert torch.equal(flat[keep], untouched[keep])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rotary_alone_leaves_values_alone(backend, random, close, step, dtype):
    query, key, _, positions, cos_sin = step(4, 6, 2, 64, 64, dtype)
    exact_q, exact_k = query.double(), key.double()
    twin.rotary(exact_q, exact_k, positions, cos_sin.double())

    backend.call("rotary_cache.rotary", query, key, positions, cos_sin)

    close(query, exact_q)
    close(key, exact_k)


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_write_alone_stores_key_and_value(backend, random, kv_heads):
    key, value = random(5, kv_heads, 64), random(5, kv_heads, 64)
    k_cache = torch.zeros(4, 32, kv_heads, 64, device=backend.device)
    v_cache = torch.zeros_like(k_cache)
    slots = torch.tensor([33, 127, 64, 2, -1], device=backend.device)

    backend.call("rotary_cache.write_cache", key, value, k_cache, v_cache, slots)

    assert torch.equal(k_cache.flatten(0, 1)[slots[:4]], key[:4])
    assert torch.equal(v_cache.flatten(0, 1)[slots[:4]], value[:4])
    assert int((k_cache.flatten(0, 1) != 0).any(-1).any(-1).sum()) == 4  # the negative slot wrote nothing


def test_fp8_cache_stores_the_scaled_and_clamped_value(backend, random):
    key, value = random(6, 2, 64, scale=30.0), random(6, 2, 64, scale=3000.0)
    k_cache, v_cache = (torch.zeros(3, 16, 2, 64, device=backend.device).to(FP8) for _ in range(2))
    slots = torch.tensor([16, 20, 47, 32, 17, 40], device=backend.device)

    backend.call("rotary_cache.write_cache", key, value, k_cache, v_cache, slots, k_scale=0.5, v_scale=2.0)

    limit = torch.finfo(FP8).max
    for cache, rows, scale in ((k_cache, key, 0.5), (v_cache, value, 2.0)):
        stored = cache.float().flatten(0, 1)[slots]
        wanted = (rows / scale).clamp(-limit, limit)
        assert torch.isfinite(stored).all()
        checked = wanted.abs() >= 2**-5  # below, steps are subnormal
        if (
            not backend.is_device
        ):  # the interpreter loses the carry of a value that rounds up to a power of two
            checked &= torch.frexp(wanted.abs()).mantissa < 31 / 32
        error = ((stored - wanted).abs() / wanted.abs())[checked].max()
        assert error <= 2**-4 * 1.001  # half a step of a 3-bit mantissa


def test_twin_of_the_fused_call_is_rotation_then_write(random, step):
    query, key, value, positions, cos_sin = step(3, 4, 2, 16, 16, torch.float64)
    k_cache, v_cache = key.new_zeros(2, 16, 2, 16), key.new_zeros(2, 16, 2, 16)
    complex_key = torch.view_as_complex(torch.stack(key.chunk(2, dim=-1), dim=-1).contiguous())
    cos, sin = cos_sin.double().chunk(2, dim=1)
    turn = torch.complex(cos, sin)[positions]
    expected = torch.view_as_real(complex_key * turn[:, None]).transpose(-1, -2).flatten(-2)

    slots = positions * 0 + torch.arange(16, 19, device=positions.device)
    twin.rotary_and_cache(query, key, value, positions, cos_sin.double(), k_cache, v_cache, slots)

    torch.testing.assert_close(k_cache[1, :3], expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(v_cache[1, :3], value)


def test_a_rotary_width_beyond_the_head_is_refused(backend, step):
    query, key, _, positions, _ = step(2, 2, 1, 32, 32, torch.float32)
    with pytest.raises(KernelArgumentError, match="width 64"):
        backend.call("rotary_cache.rotary", query, key, positions, torch.zeros(50, 64, device=backend.device))


def test_a_cache_of_other_heads_is_refused(backend, random):
    key = random(2, 2, 32)
    cache = random(2, 16, 3, 32)
    slots = torch.tensor([16, 17], device=backend.device)
    with pytest.raises(KernelArgumentError, match="k_cache"):
        backend.call("rotary_cache.write_cache", key, key, cache, cache, slots)
