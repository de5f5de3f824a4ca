"""The bodies of paged attention, torch's and the CPU kernel's, against float64 row by row."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from atom.models.cpu import cpu_kernels
from atom.models.layers.attention_metadata import TorchAttentionMetaData
from atom.models.layers.attention_paged import paged_bucket_attention
from atom.models.layers.attention_torch import bucket_attention, ragged_attention, write_cache

HEAD_DIM = 16


@dataclass
class Case:
    """A step over a filled cache."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    metadata: TorchAttentionMetaData

    def reference(self) -> torch.Tensor:
        """float64 `[live rows, heads, head_dim]`."""
        block_size = self.k_cache.shape[1]
        group = self.query.shape[1] // self.k_cache.shape[2]
        out = []
        row = 0
        for seq, (rows, length) in enumerate(
            zip(self.metadata.query_lens_host, self.metadata.seq_lens_host, strict=True)
        ):
            table = self.metadata.block_tables[seq].tolist()
            slots = [(table[t // block_size], t % block_size) for t in range(length)]
            keys = torch.stack([self.k_cache[slot] for slot in slots]).double()
            values = torch.stack([self.v_cache[slot] for slot in slots]).double()
            for i in range(rows):
                seen = length - rows + i + 1
                heads = []
                for head in range(self.query.shape[1]):
                    scores = keys[:seen, head // group] @ self.query[row, head].double() / math.sqrt(HEAD_DIM)
                    heads.append(scores.softmax(0) @ values[:seen, head // group])
                out.append(torch.stack(heads))
                row += 1
        return torch.stack(out) if out else torch.zeros(0, *self.query.shape[1:], dtype=torch.float64)


def make_case(
    query_lens: list[int],
    seq_lens: list[int],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    block_size: int = 4,
    scattered: bool = True,
    padding_rows: int = 0,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
) -> Case:
    torch.manual_seed(0)
    width = -(-max(seq_lens, default=1) // block_size) + 1
    blocks = torch.arange(1, len(seq_lens) * width + 1)
    order = blocks[torch.randperm(blocks.numel())] if scattered else blocks
    tables = order.view(len(seq_lens), width).to(torch.int32)
    slots = []
    for seq, (rows, length) in enumerate(zip(query_lens, seq_lens, strict=True)):
        used = -(-length // block_size)
        tables[seq, used:] = 0
        for t in range(length - rows, length):
            slots.append(int(tables[seq, t // block_size]) * block_size + t % block_size)
    total = sum(query_lens) + padding_rows
    shape = (blocks.numel() + 1, block_size, kv_heads, HEAD_DIM)
    case = Case(
        query=torch.randn(total, heads, HEAD_DIM, dtype=dtype),
        key=torch.randn(total, kv_heads, HEAD_DIM, dtype=dtype),
        value=torch.randn(total, kv_heads, HEAD_DIM, dtype=dtype),
        k_cache=torch.randn(shape).to(cache_dtype or dtype),
        v_cache=torch.randn(shape).to(cache_dtype or dtype),
        metadata=TorchAttentionMetaData(
            cu_seqlens_q=torch.tensor([0, *query_lens], dtype=torch.int32).cumsum(0, dtype=torch.int32),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
            block_tables=tables,
            slot_mapping=torch.tensor(
                slots + [i % block_size for i in range(padding_rows)], dtype=torch.int64
            ),
            max_seqlen_q=max(query_lens, default=0),
            max_seqlen_k=max(seq_lens, default=0),
            query_lens_host=query_lens,
            seq_lens_host=seq_lens,
        ),
    )
    write_cache(case.k_cache, case.key, case.metadata.slot_mapping)
    write_cache(case.v_cache, case.value, case.metadata.slot_mapping)
    return case


def run_ragged(case: Case, *, paged: bool = False) -> torch.Tensor:
    output = torch.full_like(case.query, math.nan)
    plan = case.metadata.plan(block_size=case.k_cache.shape[1], dtype=case.query.dtype, paged=paged)
    ragged_attention(
        case.query,
        case.key,
        case.value,
        case.k_cache,
        case.v_cache,
        output,
        plan=plan,
        scale=HEAD_DIM**-0.5,
    )
    return output


def run_bucket(case: Case, bucket: tuple[int, int], *, paged: bool = False) -> torch.Tensor:
    """The case padded to a bucket."""
    meta = case.metadata
    missing = bucket[0] - len(meta.seq_lens_host)
    padded = TorchAttentionMetaData(
        cu_seqlens_q=meta.cu_seqlens_q,
        seq_lens=torch.cat((meta.seq_lens, torch.zeros(missing, dtype=torch.int32))),
        block_tables=torch.cat(
            (meta.block_tables, torch.zeros(missing, meta.block_tables.shape[1], dtype=torch.int32))
        ),
        slot_mapping=meta.slot_mapping,
        max_seqlen_q=bucket[1] + 1,
        max_seqlen_k=meta.max_seqlen_k,
        request_bucket=bucket,
    )
    rows = bucket[0] * (bucket[1] + 1)
    query = torch.cat((case.query, torch.randn(rows - case.query.shape[0], *case.query.shape[1:])))
    output = torch.full_like(query, math.nan)
    body = paged_bucket_attention if paged else bucket_attention
    body(query, case.k_cache, case.v_cache, output, metadata=padded, scale=HEAD_DIM**-0.5)
    return output


needs_kernels = pytest.mark.skipif(cpu_kernels() is None, reason="needs a C compiler")
BODIES = [pytest.param(False, id="torch"), pytest.param(True, id="kernel", marks=needs_kernels)]


STEPS = {
    "one decoding": ([1], [9]),
    "several decoding": ([1, 1, 1], [9, 1, 16]),
    "equal lengths, whole blocks": ([1, 1], [8, 8]),
    "lengths far apart": ([1, 1, 1, 1], [2, 90, 3, 50]),
    "prompts": ([5, 1, 12], [5, 1, 12]),
    "long prompt": ([40], [40]),
    "chunks": ([5, 3], [11, 30]),
    "long chunk": ([33], [50]),
    "mixed": ([1, 20, 1, 4, 1, 4], [9, 31, 64, 4, 5, 18]),
    "verifying": ([3, 3, 3], [7, 19, 3]),
    "one without a row": ([1, 0, 2], [5, 4, 2]),
    "nothing": ([], []),
}


@pytest.mark.parametrize("scattered", [True, False])
@pytest.mark.parametrize("heads", [(4, 2), (4, 4), (6, 1)])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("paged", BODIES)
def test_ragged_body_equals_the_reference(step, heads, scattered, paged):
    query_lens, seq_lens = STEPS[step]
    case = make_case(query_lens, seq_lens, heads=heads[0], kv_heads=heads[1], scattered=scattered)
    output = run_ragged(case, paged=paged)
    torch.testing.assert_close(output, case.reference().float(), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("padding_rows", [1, 5])
@pytest.mark.parametrize("step", ["several decoding", "mixed", "lengths far apart"])
@pytest.mark.parametrize("paged", BODIES)
def test_ragged_body_zero_fills_padding_rows(step, padding_rows, paged):
    case = make_case(*STEPS[step], padding_rows=padding_rows)
    output = run_ragged(case, paged=paged)
    assert (output[-padding_rows:] == 0).all()
    torch.testing.assert_close(output[:-padding_rows], case.reference().float(), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("step", "bucket"),
    [
        ("one decoding", (1, 0)),
        ("one decoding", (4, 0)),
        ("several decoding", (3, 0)),
        ("several decoding", (8, 0)),
        ("verifying", (3, 2)),
        ("verifying", (5, 2)),
    ],
)
@pytest.mark.parametrize("paged", BODIES)
def test_bucket_body_equals_the_reference_and_padding_is_finite(step, bucket, paged):
    case = make_case(*STEPS[step])
    output = run_bucket(case, bucket, paged=paged)
    live = sum(case.metadata.query_lens_host)
    torch.testing.assert_close(output[:live], case.reference().float(), atol=2e-6, rtol=1e-5)
    assert torch.isfinite(output).all()


def test_bucket_body_reads_no_length_on_the_host():
    """The same call serves another step once the tensors have changed."""
    first, second = make_case([1, 1], [5, 7]), make_case([1, 1], [7, 2])
    metadata = TorchAttentionMetaData(
        cu_seqlens_q=first.metadata.cu_seqlens_q,
        seq_lens=first.metadata.seq_lens.clone(),
        block_tables=first.metadata.block_tables.clone(),
        slot_mapping=first.metadata.slot_mapping,
        max_seqlen_q=1,
        max_seqlen_k=7,
        request_bucket=(2, 0),
    )
    output = torch.empty_like(first.query)
    metadata.seq_lens.copy_(second.metadata.seq_lens)
    metadata.block_tables.copy_(second.metadata.block_tables)
    bucket_attention(
        second.query, second.k_cache, second.v_cache, output, metadata=metadata, scale=HEAD_DIM**-0.5
    )
    torch.testing.assert_close(output, second.reference().float(), atol=2e-6, rtol=1e-5)


def test_a_cache_in_another_format_is_what_is_attended_to():
    case = make_case([5, 1], [5, 9], cache_dtype=torch.bfloat16)
    torch.testing.assert_close(run_ragged(case), case.reference().float(), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_stays_near_the_reference(dtype):
    case = make_case(*STEPS["mixed"], dtype=dtype)
    torch.testing.assert_close(run_ragged(case).double(), case.reference(), atol=2e-2, rtol=2e-2)


def test_write_cache_changes_the_named_slots_alone():
    cache = torch.zeros(3, 4, 2, HEAD_DIM)
    rows = torch.randn(3, 2, HEAD_DIM)
    write_cache(cache, rows, torch.tensor([5, 11]))
    flat = cache.view(12, 2, HEAD_DIM)
    assert torch.equal(flat[5], rows[0])
    assert torch.equal(flat[11], rows[1])
    assert flat.flatten(1).any(1).sum() == 2


def test_a_slot_that_does_not_exist_is_an_error_and_no_wrapped_index():
    cache = torch.zeros(3, 4, 2, HEAD_DIM)
    with pytest.raises((IndexError, RuntimeError), match="index"):
        write_cache(cache, torch.randn(1, 2, HEAD_DIM), torch.tensor([-1]))
    assert not cache.any()
