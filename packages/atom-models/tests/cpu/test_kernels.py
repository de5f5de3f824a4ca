"""The compiled CPU kernels against float64, at odd sizes, and that a row never depends on its neighbours."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from atom.models.cpu import CpuKernels, cpu_kernels

found = cpu_kernels()
pytestmark = pytest.mark.skipif(found is None, reason="needs a C compiler")


@pytest.fixture
def kernels() -> CpuKernels:
    assert found is not None
    torch.manual_seed(0)
    return found


def poisoned(*shape: int) -> torch.Tensor:
    return torch.full(shape, math.nan)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("out_features", "in_features"), [(960, 576), (33, 7), (1, 1), (100, 64), (64, 3)])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 11, 12, 13, 30])
def test_a_product_equals_float64(kernels, rows, out_features, in_features, half):
    weight = torch.randn(out_features, in_features) / math.sqrt(in_features)
    weight = weight.half() if half else weight
    bias = torch.randn(out_features)
    x = torch.randn(rows, in_features)
    result = kernels.linear(x, kernels.pack(weight), bias, out_features)
    expected = F.linear(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(result.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("half", [False, True])
def test_a_row_of_a_product_is_the_same_in_every_batch(kernels, half):
    weight = torch.randn(100, 70)
    panels = kernels.pack(weight.half() if half else weight)
    x = torch.randn(40, 70)
    together = kernels.linear(x, panels, None, 100)
    for first in (0, 7, 39):
        for rows in (1, 2, 3, 4, 12, 25):
            alone = kernels.linear(x[first : first + rows], panels, None, 100)
            assert torch.equal(alone, together[first : first + rows])


def test_a_product_takes_rows_that_lie_apart(kernels):
    weight, wide = torch.randn(40, 16), torch.randn(5, 48)
    panels = kernels.pack(weight)
    lying_apart = wide[:, 16:32]
    expected = kernels.linear(lying_apart.clone(), panels, None, 40)
    assert torch.equal(kernels.linear(lying_apart, panels, None, 40), expected)


def test_nan_and_infinity_pass_through_a_product(kernels):
    x = torch.zeros(2, 8)
    x[0, 3], x[1, 5] = math.nan, math.inf
    result = kernels.linear(x, kernels.pack(torch.ones(5, 8)), None, 5)
    assert result[0].isnan().all()
    assert torch.equal(result[1], torch.full((5,), math.inf))


@pytest.mark.parametrize("size", [1, 16, 77, 1536])
@pytest.mark.parametrize("rows", [1, 5, 129])
def test_the_gate_equals_float64(kernels, rows, size):
    x = torch.randn(rows, 2 * size) * 20
    expected = F.silu(x[:, :size].double()) * x[:, size:].double()
    torch.testing.assert_close(kernels.silu_mul(x).double(), expected, atol=1e-6, rtol=1e-6)


def test_the_gate_at_the_ends_of_the_scale(kernels):
    gate = torch.tensor([[0.0, -0.0, 100.0, -100.0, -3e38, 3e38, math.inf]])
    result = kernels.silu_mul(torch.cat((gate, torch.ones_like(gate)), 1))
    torch.testing.assert_close(result, torch.tensor([[0.0, 0.0, 100.0, 0.0, 0.0, 3e38, math.inf]]))


@pytest.mark.parametrize(("size", "turning"), [(16, 16), (64, 64), (24, 8), (6, 2)])
def test_a_rotation_equals_float64_and_reads_a_slice(kernels, size, turning):
    fused = torch.randn(5, 4, size)
    heads = fused[:, :3]
    angles = torch.rand(5, 1, turning // 2) * 7
    cos = torch.cat((angles.cos(), angles.cos()), -1)
    sin = torch.cat((-angles.sin(), angles.sin()), -1)
    wide = heads[..., :turning].double()
    turned = wide * cos + wide.roll(turning // 2, -1) * sin
    expected = torch.cat((turned, heads[..., turning:].double()), -1)
    torch.testing.assert_close(kernels.rotate(heads, cos, sin).double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (4, 4), (8, 1)])
@pytest.mark.parametrize("head_dim", [16, 48, 64, 96, 128, 256])
@pytest.mark.parametrize("block_size", [1, 16, 256])
def test_attention_equals_float64(kernels, heads, kv_heads, head_dim, block_size):
    query_len, lens = 2, [2, 17, 64, 65, 0, 200]
    width = -(-max(lens) // block_size)
    caches = torch.randn(2, len(lens) * width + 1, block_size, kv_heads, head_dim)
    tables = (torch.randperm(len(lens) * width, dtype=torch.int32) + 1).view(len(lens), width)
    query = torch.randn(len(lens) * query_len, heads, head_dim)
    output = poisoned(*query.shape)
    scale = head_dim**-0.5
    kernels.paged_attention(
        query, caches[0], caches[1], tables, torch.tensor(lens, dtype=torch.int32), output, query_len, scale
    )
    for row in range(query.shape[0]):
        seq, seen = row // query_len, max(1, lens[row // query_len] - query_len + row % query_len + 1)
        keys, values = (
            cache[tables[seq].long()].reshape(-1, kv_heads, head_dim)[:seen].double() for cache in caches
        )
        group = heads // kv_heads
        scores = torch.einsum("hd,khd->hk", query[row].double(), keys.repeat_interleave(group, 1)) * scale
        expected = torch.einsum("hk,khd->hd", scores.softmax(-1), values.repeat_interleave(group, 1))
        torch.testing.assert_close(output[row].double(), expected, atol=1e-5, rtol=1e-5)


def test_large_scores_do_not_overflow(kernels):
    cache = torch.full((2, 16, 1, 16), 50.0)
    output = poisoned(1, 1, 16)
    tables, lens = torch.ones(1, 1, dtype=torch.int32), torch.tensor([9], dtype=torch.int32)
    kernels.paged_attention(torch.full((1, 1, 16), 1e4), cache, cache, tables, lens, output, 1, 1.0)
    assert torch.equal(output, torch.full_like(output, 50.0))


@pytest.mark.parametrize("block", [-1, 2, 2**31 - 1])
def test_a_block_that_the_cache_does_not_have_is_an_error(kernels, block):
    cache, output = torch.zeros(2, 16, 1, 16), torch.zeros(1, 1, 16)
    tables, lens = torch.tensor([[block]], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)
    with pytest.raises(IndexError, match="block number is out of range"):
        kernels.paged_attention(torch.zeros(1, 1, 16), cache, cache, tables, lens, output, 1, 1.0)


def test_a_bad_slot_leaves_the_cache_as_it_was(kernels):
    cache = torch.zeros(3, 4, 2, 16)
    with pytest.raises(IndexError, match="index is out of range, the cache does not have the slot"):
        kernels.write_cache(cache, torch.ones(2, 2, 16), torch.tensor([5, 12]))
    assert not cache.any()


def test_threads_do_not_change_a_bit(kernels):
    weight, x = torch.randn(300, 200), torch.randn(20, 200)
    panels, before = kernels.pack(weight), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(kernels.linear(x, panels, None, 300))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_arguments_that_do_not_fit_are_refused_and_never_read_past_their_end(kernels):
    panels = kernels.pack(torch.randn(40, 16))
    with pytest.raises(ValueError, match=r"float32 \[rows, 16\], not torch.float32 \[3, 8\]"):
        kernels.linear(torch.randn(3, 8), panels, None, 40)
    with pytest.raises(ValueError, match=r"not torch.float64"):
        kernels.linear(torch.randn(3, 16, dtype=torch.float64), panels, None, 40)
    with pytest.raises(ValueError, match=r"a norm of \[2, 8\] by a weight torch.float32 \[4\]"):
        kernels.rms_norm(torch.randn(2, 8), torch.ones(4), 1e-6)
    with pytest.raises(ValueError, match="with a residual"):
        kernels.add_rms_norm(torch.randn(2, 8), torch.randn(1, 8), torch.ones(8), 1e-6)
    cache, output = torch.zeros(2, 16, 1, 16), torch.zeros(1, 1, 16)
    tables, lens = torch.ones(1, 1, dtype=torch.int32), torch.tensor([17], dtype=torch.int32)
    with pytest.raises(IndexError, match="out of range"):  # a table of 16 tokens for 17
        kernels.paged_attention(torch.zeros(1, 1, 16), cache, cache, tables, lens, output, 1, 1.0)
    with pytest.raises(ValueError, match=r"are int32, not torch\.int64"):
        kernels.paged_attention(torch.zeros(1, 1, 16), cache, cache, tables.long(), lens, output, 1, 1.0)
