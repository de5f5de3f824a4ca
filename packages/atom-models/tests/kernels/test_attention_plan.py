import dataclasses

import pytest
import torch

from atom.models.kernels.attention_plan import plan_decode, plan_prefill
from atom.models.kernels.errors import KernelArgumentError

SHAPE = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": torch.bfloat16, "processors": 132}


def prefill(rows, max_seqs, context=1024, **changes):
    return plan_prefill(rows=rows, max_seqs=max_seqs, max_seqlen_k=context, **{**SHAPE, **changes})


def test_a_plan_knows_no_lengths_and_is_immutable():
    plan = prefill(64, 8)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.splits = 3


@pytest.mark.parametrize(("rows", "seqs"), [(1, 1), (8, 8), (64, 64), (8192, 512)])
def test_a_decode_bucket_splits_only_as_far_as_it_must_to_fill_the_device(rows, seqs):
    plan = prefill(rows, seqs)
    programs = plan.items * SHAPE["kv_heads"] * plan.splits
    assert plan.splits == 1 or programs <= 2 * SHAPE["processors"]


def test_long_contexts_split_further_than_short_ones():
    few = plan_decode(
        seqs=1, kv_heads=8, head_dim=128, max_seqlen_k=128, dtype=torch.bfloat16, processors=132
    )
    many = plan_decode(
        seqs=1, kv_heads=8, head_dim=128, max_seqlen_k=8192, dtype=torch.bfloat16, processors=132
    )
    assert few.splits <= 2 < many.splits


def test_a_group_wider_than_the_tile_still_gets_one_token():
    assert prefill(4, 4, heads=256, kv_heads=1).block_q >= 1


def test_an_empty_bucket_is_refused():
    with pytest.raises(KernelArgumentError, match="at least 1"):
        prefill(0, 1)
