"""How steps are cut into groups."""

from __future__ import annotations

import pytest
import torch

from atom.graphs.forward_context import AttentionMetaData
from atom.models.layers.attention_plan import plan_ragged
from atom.models.layers.errors import AttentionSetupError


def metadata(
    query_lens: list[int], seq_lens: list[int], tables: list[list[int]] | None = None
) -> AttentionMetaData:
    width = -(-max(seq_lens) // 4)
    rows = [[1 + i * width + j for j in range(width)] for i in range(len(seq_lens))]
    return AttentionMetaData(
        cu_seqlens_q=torch.tensor([0, *query_lens], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_tables=torch.tensor(tables or rows, dtype=torch.int32),
        slot_mapping=torch.zeros(sum(query_lens), dtype=torch.int64),
        max_seqlen_q=max(query_lens),
        max_seqlen_k=max(seq_lens),
        query_lens_host=query_lens,
        seq_lens_host=seq_lens,
    )


def plan(*args: list[int], **kwargs: list[list[int]]):
    return plan_ragged(metadata(*args, **kwargs), block_size=4, dtype=torch.float32)


def test_sequences_that_decode_share_one_group():
    (group,) = plan([1, 1, 1], [5, 9, 7]).groups
    assert (group.num_seqs, group.query_len, group.rows, group.key_len) == (3, 1, slice(0, 3), 12)
    assert group.covers_all
    assert group.mask.isinf().sum(-1).flatten().tolist() == [7, 3, 5]


def test_equal_lengths_of_whole_blocks_need_no_mask():
    (group,) = plan([1, 1], [8, 8]).groups
    assert group.mask is None


def test_blocks_in_order_are_read_in_place():
    (group,) = plan([1], [9]).groups
    assert group.keys == slice(4, 13)
    assert group.mask is None


def test_blocks_out_of_order_are_gathered():
    (group,) = plan([1], [9], tables=[[3, 1, 2]]).groups
    assert group.keys.tolist() == [3, 1, 2]
    assert group.key_len == 9


def test_a_prompt_from_its_beginning_needs_neither_mask_nor_cache():
    (group,) = plan([20], [20]).groups
    assert group.whole
    assert group.mask is None


def test_a_chunk_sees_what_came_before_and_itself_up_to_each_row():
    (group,) = plan([2], [7]).groups
    assert not group.whole
    assert group.mask[0, 0].isinf().tolist() == [[False] * 6 + [True], [False] * 7]


def test_lengths_far_apart_are_not_padded_to_the_longest():
    groups = plan([1, 1, 1], [3, 200, 5]).groups
    assert sorted(group.num_seqs for group in groups) == [1, 2]
    (short,) = [group for group in groups if group.num_seqs == 2]
    assert short.key_len == 8
    assert short.rows.tolist() == [0, 2]
    assert not short.covers_all


def test_drafts_of_several_sequences_are_verified_together():
    (group,) = plan([3, 3], [8, 10]).groups
    assert (group.num_seqs, group.query_len, group.rows) == (2, 3, slice(0, 6))
    assert group.mask.shape == (2, 1, 3, 12)


def test_rows_of_a_scattered_group_with_several_rows_each():
    groups = plan([2, 5, 2], [8, 5, 6]).groups
    (pair,) = [group for group in groups if group.num_seqs == 2]
    assert pair.rows.tolist() == [0, 1, 7, 8]


@pytest.mark.parametrize(
    ("query_lens", "seq_lens", "words"),
    [
        ([1, 1], [3], "are of no step"),
        ([4], [3], "are of no step"),
        ([1, 1, 1], [3, 3, 3], "block_tables is"),
    ],
)
def test_lists_that_contradict_are_refused(query_lens, seq_lens, words):
    broken = metadata([1, 1], [4, 4])
    broken.query_lens_host, broken.seq_lens_host = query_lens, seq_lens
    with pytest.raises(AttentionSetupError, match=words):
        plan_ragged(broken, block_size=4, dtype=torch.float32)
