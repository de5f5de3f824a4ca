import dataclasses

import pytest
import torch
import torch.nn.functional as F

from atom.models.kernels.attention_plan import plan_prefill
from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.reference import paged_prefill as twin
from atom.models.kernels.reference import work_list as list_twin

FP8 = torch.float8_e4m3fnuz if torch.version.hip else torch.float8_e4m3fn
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture
def attend(backend, random, poisoned, paged, close):
    """Run a step of `(query tokens, cached tokens)` sequences padded to `rows`, and compare with float64."""

    def run(
        sequences,
        rows,
        *,
        heads,
        kv_heads,
        head_dim,
        block_size,
        dtype,
        cache_dtype=None,
        splits=None,
        **scales,
    ):
        lengths = [cached for _, cached in sequences]
        cache = paged(
            lengths,
            block_size=block_size,
            kv_heads=kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            cache_dtype=cache_dtype,
        )
        counts = torch.tensor([0, *(count for count, _ in sequences)])
        starts = counts.cumsum(0).to(backend.device, torch.int32)
        plan = plan_prefill(
            rows=rows, max_seqs=len(sequences), heads=heads, kv_heads=kv_heads, head_dim=head_dim,
            max_seqlen_k=max(lengths), dtype=dtype, processors=132 if backend.is_device else 1,
        )  # fmt: skip
        if splits is not None:
            plan = dataclasses.replace(plan, splits=splits)
        work = torch.full((plan.items, 4), -7, dtype=torch.int32, device=backend.device)
        backend.call("work_list.build_work_list", starts, cache[3], rows, plan, work)
        query = random(rows, heads, head_dim, dtype=dtype)
        out = poisoned(rows, heads, head_dim, dtype=dtype)
        scale = head_dim**-0.5

        backend.call("paged_prefill.paged_prefill", query, *cache[:3], work, out, plan, scale=scale, **scales)

        exact = torch.empty_like(query, dtype=torch.float64)
        items = torch.zeros_like(work)
        list_twin.build_work_list(starts, cache[3], rows, plan, items)
        keys, values = (c.float().double() for c in cache[:2])
        twin.paged_prefill(query.double(), keys, values, cache[2], items, exact, plan, scale=scale, **scales)
        close(out, exact)
        assert out[int(starts[-1]) :].abs().sum() == 0  # padding rows

    return run


@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"),
    [(2, 2, 64, 16), (9, 3, 64, 32), (4, 1, 128, 16), (8, 1, 128, 256), (2, 1, 256, 64), (2, 1, 80, 128)],
)
def test_a_mixed_step_equals_its_twin(backend, attend, heads, kv_heads, head_dim, block_size, dtype):
    # a fresh prompt, a chunk after a cached prefix, a decode token, a padding sequence, and padding rows
    small = [(20, 20), (9, 60), (1, 33), (0, 0)]
    large = [(129, 129), (257, 700), (1, 1033), (0, 0), (1, 1), (64, 64)]
    sequences, rows = (large, 512) if backend.is_device else (small, 40)
    attend(
        sequences, rows, heads=heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype
    )


@pytest.mark.parametrize("splits", [2, 4])
def test_splits_serve_decode_rows_in_a_token_bucket(attend, splits):
    sequences = [(1, 200), (1, 3), (2, 65), (0, 0)]
    attend(sequences, 8, heads=4, kv_heads=2, head_dim=64, block_size=16, dtype=FP32, splits=splits)


@pytest.mark.parametrize("rows", [1, 129])
def test_odd_row_counts_without_padding(attend, rows):
    attend([(rows, rows)], rows, heads=2, kv_heads=1, head_dim=64, block_size=16, dtype=FP32)


def test_a_step_of_padding_alone_gives_zeros(attend):
    attend([(0, 0), (0, 0)], 5, heads=2, kv_heads=1, head_dim=64, block_size=16, dtype=BF16)


def test_fp8_cache_is_read_with_its_scales(attend):
    attend(
        [(17, 30)], 20, heads=4, kv_heads=2, head_dim=64, block_size=16, dtype=BF16, cache_dtype=FP8,
        k_scale=0.7, v_scale=1.9,
    )  # fmt: skip


def test_twin_is_torchs_causal_attention(random, paged):
    keys, values, tables, lengths = paged([21], block_size=16, kv_heads=1, head_dim=32, dtype=torch.float64)
    query = random(21, 2, 32, dtype=torch.float64)
    out = torch.empty_like(query)
    plan = plan_prefill(
        rows=21,
        max_seqs=1,
        heads=2,
        kv_heads=1,
        head_dim=32,
        max_seqlen_k=21,
        dtype=torch.float64,
        processors=1,
    )
    work = torch.zeros(plan.items, 4, dtype=torch.int32)
    list_twin.build_work_list(torch.tensor([0, 21]), lengths, 21, plan, work)

    twin.paged_prefill(query, keys, values, tables, work, out, plan, scale=32**-0.5)

    k, v = (c[tables[0].long()].flatten(0, 1)[:21].expand(-1, 2, -1).transpose(0, 1) for c in (keys, values))
    dense = F.scaled_dot_product_attention(query.transpose(0, 1), k, v, is_causal=True)
    torch.testing.assert_close(out, dense.transpose(0, 1))


def test_a_work_list_of_another_plan_is_refused(backend, random, paged):
    cache = paged([8], block_size=16, kv_heads=1, head_dim=64, dtype=FP32)
    plan = plan_prefill(
        rows=8, max_seqs=1, heads=2, kv_heads=1, head_dim=64, max_seqlen_k=16, dtype=FP32, processors=1
    )
    work = torch.zeros(plan.items + 1, 4, dtype=torch.int32, device=backend.device)
    query = random(8, 2, 64)
    with pytest.raises(KernelArgumentError, match="work list"):
        backend.call("paged_prefill.paged_prefill", query, *cache[:3], work, query.clone(), plan, scale=1.0)
