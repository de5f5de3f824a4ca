"""The builder slices, and a plan is made once a step."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from atom.models.layers.attention_metadata import AttentionMetadataBuilder


def batch() -> SimpleNamespace:
    return SimpleNamespace(
        cu_seqlens_q=torch.tensor([0, 1, 2, 2, 2], dtype=torch.int32),
        seq_lens=torch.tensor([3, 5, 0, 0], dtype=torch.int32),
        block_tables=torch.tensor([[1, 0], [2, 3], [0, 0], [0, 0]], dtype=torch.int32),
        slot_mapping=torch.zeros(16, dtype=torch.int64),
        query_lens_host=[1, 1],
        seq_lens_host=[3, 5],
        max_seqlen_q=1,
        max_seqlen_k=5,
    )


def build(inputs: SimpleNamespace, bucket: tuple[int, int] | None = None):
    return AttentionMetadataBuilder().build(inputs, running_bs=3, running_tokens=8, request_bucket=bucket)


def test_tensors_are_the_buffers_themselves_cut_to_what_runs():
    inputs = batch()
    metadata = build(inputs, (3, 0))
    assert metadata.cu_seqlens_q.shape == (4,)
    assert metadata.seq_lens.shape == (3,)
    assert metadata.block_tables.shape == (3, 2)
    assert metadata.slot_mapping.shape == (8,)
    assert metadata.request_bucket == (3, 0)
    for name in ("cu_seqlens_q", "seq_lens", "block_tables", "slot_mapping"):
        assert getattr(metadata, name).data_ptr() == getattr(inputs, name).data_ptr()


def test_host_lists_are_copies_that_the_next_step_cannot_change():
    inputs = batch()
    metadata = build(inputs)
    inputs.seq_lens_host[0] = 99
    assert metadata.seq_lens_host == [3, 5]


def test_the_plan_is_made_once_for_all_layers_and_again_for_another_cache():
    metadata = build(batch())
    first = metadata.plan(block_size=4, dtype=torch.float32)
    assert metadata.plan(block_size=4, dtype=torch.float32) is first
    other = metadata.plan(block_size=8, dtype=torch.float32)
    assert other is not first
    assert other.block_size == 8
    assert metadata.plan(block_size=8, dtype=torch.bfloat16).dtype == torch.bfloat16
