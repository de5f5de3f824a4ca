import pytest
import torch
import torch.nn.functional as F

from atom.models.kernels.attention_plan import DecodePlan, plan_decode
from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.reference import paged_decode as twin

FP8 = torch.float8_e4m3fnuz if torch.version.hip else torch.float8_e4m3fn
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def plan(splits=1, block_n=32):
    return DecodePlan(splits=splits, block_n=block_n, num_warps=4, num_stages=2)


def expected(query, k_cache, v_cache, tables, lengths, **settings):
    """The twin in float64, over what the cache really holds."""
    out = torch.empty_like(query, dtype=torch.float64)
    keys, values = (c.float().double() for c in (k_cache, v_cache))
    twin.paged_decode(query.double(), keys, values, tables, lengths, out, **settings)
    return out


@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"),
    [(4, 4, 64, 16), (9, 3, 64, 32), (8, 2, 128, 16), (8, 1, 128, 256), (2, 1, 256, 64), (4, 2, 80, 128)],
)
def test_decode_equals_its_twin_in_float64(
    backend, random, poisoned, paged, close, heads, kv_heads, head_dim, block_size, dtype
):
    lengths = [1, 77, 0, 130] if not backend.is_device else [1, 77, 0, 130, 1031, 2048, 129, 16]
    cache = paged(lengths, block_size=block_size, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
    query = random(len(lengths), heads, head_dim, dtype=dtype)
    out = poisoned(*query.shape, dtype=dtype)

    chosen = None if backend.is_device else plan(block_n=64)
    backend.call("paged_decode.paged_decode", query, *cache, out, scale=head_dim**-0.5, plan=chosen)

    close(out, expected(query, *cache, scale=head_dim**-0.5))
    assert out[2].abs().sum() == 0  # the padding sequence


@pytest.mark.parametrize("splits", [2, 5, 8])
def test_splits_change_nothing_but_rounding(backend, random, poisoned, paged, close, splits):
    lengths = [3, 300, 0, 33]
    cache = paged(lengths, block_size=16, kv_heads=2, head_dim=64, dtype=FP32, width=40)
    query = random(4, 6, 64)
    out = poisoned(4, 6, 64)

    backend.call("paged_decode.paged_decode", query, *cache, out, scale=0.1, plan=plan(splits))

    close(out, expected(query, *cache, scale=0.1))
    assert out[2].abs().sum() == 0


@pytest.mark.parametrize("query_len", [2, 3])
@pytest.mark.parametrize("splits", [1, 3])
def test_several_tokens_a_sequence_see_only_their_past(
    backend, random, poisoned, paged, close, query_len, splits
):
    lengths = [query_len, 70, 0, 32]
    cache = paged(lengths, block_size=16, kv_heads=1, head_dim=64, dtype=FP32)
    query = random(4 * query_len, 3, 64)
    out = poisoned(4 * query_len, 3, 64)

    backend.call(
        "paged_decode.paged_decode", query, *cache, out, scale=0.125, query_len=query_len, plan=plan(splits)
    )

    close(out, expected(query, *cache, scale=0.125, query_len=query_len))


def test_fp8_cache_is_read_with_its_scales(backend, random, poisoned, paged, close):
    cache = paged([40, 7], block_size=16, kv_heads=2, head_dim=64, dtype=BF16, cache_dtype=FP8)
    query = random(2, 4, 64, dtype=BF16)
    out = poisoned(2, 4, 64, dtype=BF16)
    settings = {"scale": 0.125, "k_scale": 0.7, "v_scale": 1.9}

    backend.call("paged_decode.paged_decode", query, *cache, out, plan=plan(), **settings)

    close(out, expected(query, *cache, **settings))


def test_query_and_output_may_be_slices_of_wider_rows(backend, random, paged, close):
    cache = paged([19, 44, 5], block_size=16, kv_heads=2, head_dim=64, dtype=FP32)
    fused = random(3, 8 * 64)
    query = fused[:, : 4 * 64].view(3, 4, 64)
    wide = torch.full((3, 512), float("nan"), device=backend.device)
    out = wide[:, 128:384].view(3, 4, 64)

    backend.call("paged_decode.paged_decode", query, *cache, out, scale=0.125, plan=plan())

    close(out.contiguous(), expected(query, *cache, scale=0.125))
    assert wide[:, :128].isnan().all()
    assert wide[:, 384:].isnan().all()


def test_twin_is_torchs_own_attention(random, paged):
    keys, values, tables, lengths = paged([50], block_size=16, kv_heads=2, head_dim=32, dtype=torch.float64)
    query = random(1, 6, 32, dtype=torch.float64)
    out = torch.empty_like(query)

    twin.paged_decode(query, keys, values, tables, lengths, out, scale=32**-0.5)

    k, v = (c[tables[0].long()].flatten(0, 1)[:50].repeat_interleave(3, dim=1) for c in (keys, values))
    dense = F.scaled_dot_product_attention(query.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1))
    torch.testing.assert_close(out, dense.transpose(0, 1))


@pytest.mark.parametrize(("seqs", "context"), [(1, 1024), (8, 1024), (256, 1024), (1, 100_000), (32, 16)])
def test_plan_follows_the_bucket_and_leaves_no_split_without_a_block(seqs, context):
    made = plan_decode(seqs=seqs, kv_heads=8, head_dim=128, max_seqlen_k=context, dtype=BF16, processors=132)
    again = plan_decode(seqs=seqs, kv_heads=8, head_dim=128, max_seqlen_k=context, dtype=BF16, processors=132)
    assert made == again
    assert 1 <= made.splits <= max(1, context // made.block_n)


def test_heads_that_do_not_divide_are_refused(backend, random, paged):
    cache = paged([8], block_size=16, kv_heads=2, head_dim=64, dtype=FP32)
    query = random(1, 3, 64)
    with pytest.raises(KernelArgumentError, match="kv_heads dividing 3"):
        backend.call("paged_decode.paged_decode", query, *cache, query.clone(), scale=1.0)
