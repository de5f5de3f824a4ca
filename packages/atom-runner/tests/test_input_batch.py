"""The tensors of a step, live part and padding."""

from __future__ import annotations

import pytest
import torch

from atom.runner import SamplingParams
from atom.runner.input_batch import InputBatch
from atom.runner.request import NO_ROW, Request
from atom.runner.scheduler import StepPlan

BLOCK = 4


def request_of(token_ids, computed, blocks, row):
    return Request(
        request_id=str(row),
        index=row,
        token_ids=list(token_ids),
        num_prompt=len(token_ids),
        params=SamplingParams(),
        seed=0,
        stop_token_ids=frozenset(),
        max_total=1000,
        num_computed=computed,
        blocks=list(blocks),
        row=row,
    )


def plan_of(*pairs):
    plan = StepPlan()
    for request, query_len in pairs:
        plan.add(request, query_len)
    return plan


@pytest.fixture
def batch():
    return InputBatch(
        max_rows=32,
        max_seqs=8,
        num_request_rows=6,
        max_blocks=5,
        block_size=BLOCK,
        device=torch.device("cpu"),
    )


@pytest.fixture
def ragged():
    return plan_of(
        (request_of(range(10, 16), 0, [3, 1], 2), 6),  # a whole prompt
        (request_of(range(20, 40), 5, [2, 7, 4], 0), 4),  # the middle of one
        (request_of(range(50, 59), 8, [5, 6, 9], 5), 1),  # a token of an answer
    )


def test_a_ragged_step(batch, ragged):
    wanted = batch.fill(ragged)
    batch.send(3, 11)
    assert wanted == [0, 2]
    assert batch.input_ids[:11].tolist() == [*range(10, 16), 25, 26, 27, 28, 58]
    assert batch.positions[:11].tolist() == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 8]
    assert batch.slot_mapping[:11].tolist() == [12, 13, 14, 15, 4, 5, 29, 30, 31, 16, 36]
    assert batch.cu_seqlens_q[:4].tolist() == [0, 6, 10, 11]
    assert batch.seq_lens[:3].tolist() == [6, 9, 9]
    assert batch.state_slots[:3].tolist() == [3, 1, 6]
    assert batch.block_tables[:3].tolist() == [[3, 1, 0, 0, 0], [2, 7, 4, 0, 0], [5, 6, 9, 0, 0]]
    assert batch.logits_rows.tolist() == [5, 10]
    assert (batch.query_lens_host, batch.seq_lens_host) == ([6, 4, 1], [6, 9, 9])
    assert (batch.num_seqs, batch.num_tokens, batch.max_seqlen_q, batch.max_seqlen_k) == (3, 11, 6, 9)


def test_padding_rows_write_to_block_0_and_padding_sequences_are_empty(batch, ragged):
    for tensor in (batch.input_ids, batch.positions, batch.slot_mapping, batch.seq_lens, batch.state_slots):
        tensor.fill_(77)
    batch.block_tables.fill_(77)
    batch.fill(ragged)
    batch.send(5, 16)
    assert batch.input_ids[11:16].tolist() == [0] * 5
    assert batch.positions[11:16].tolist() == [0] * 5
    assert all(0 <= slot < BLOCK for slot in batch.slot_mapping[11:16].tolist())
    assert batch.cu_seqlens_q[3:6].tolist() == [11, 11, 11]
    assert batch.seq_lens[3:5].tolist() == [0, 0]
    assert batch.state_slots[3:5].tolist() == [0, 0]
    assert batch.block_tables[3:5].tolist() == [[0] * 5] * 2


def test_padding_sequences_of_a_uniform_step_own_the_padding_rows(batch):
    decode = plan_of(*((request_of(range(9), 8, [i + 1, i + 2, i + 3], i), 1) for i in range(2)))
    batch.fill(decode)
    batch.send(5, 5)
    assert batch.cu_seqlens_q[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.input_ids[:5].tolist() == [8, 8, 0, 0, 0]


def test_a_decode_step_keeps_its_addresses(batch):
    names = ("input_ids", "positions", "slot_mapping", "cu_seqlens_q", "seq_lens", "block_tables")
    before = {name: getattr(batch, name).data_ptr() for name in names}
    for computed in (3, 4, 5):
        batch.fill(plan_of((request_of(range(6), computed, [2, 3], 1), 1)))
        batch.send(4, 4)
    assert {name: getattr(batch, name).data_ptr() for name in names} == before


def test_a_growing_request_adds_to_its_table_and_a_new_owner_clears_it(batch):
    request = request_of(range(20), 0, [1], 3)
    batch.fill(plan_of((request, 4)))
    request.blocks += [4, 5]
    request.num_computed = 4
    batch.fill(plan_of((request, 8)))
    batch.send(1, 8)
    assert batch.block_tables[0].tolist() == [1, 4, 5, 0, 0]
    request.row = request.table_row = NO_ROW
    batch.fill(plan_of((request_of(range(4), 0, [2], 3), 4)))
    batch.send(1, 4)
    assert batch.block_tables[0].tolist() == [2, 0, 0, 0, 0]


def test_a_request_that_comes_back_to_its_old_row_brings_its_new_blocks(batch):
    request = request_of(range(8), 0, [1, 2], 3)
    batch.fill(plan_of((request, 8)))
    request.row = request.table_row = NO_ROW  # preempted
    request.blocks, request.row = [4, 5], 3
    batch.fill(plan_of((request, 8)))
    batch.send(1, 8)
    assert batch.block_tables[0].tolist() == [4, 5, 0, 0, 0]
    assert batch.slot_mapping[:8].tolist() == [*range(16, 24)]


def test_a_dummy_step_lies_in_block_0(batch):
    batch.fill_dummy([6, 6, 6])
    batch.send(3, 18)
    assert batch.cu_seqlens_q[:4].tolist() == [0, 6, 12, 18]
    assert batch.positions[:18].tolist() == [*range(6)] * 3
    assert all(0 <= slot < BLOCK for slot in batch.slot_mapping[:18].tolist())
    assert batch.block_tables[:3].tolist() == [[0] * 5] * 3
    assert batch.state_slots[:3].tolist() == [0, 0, 0]
    assert batch.logits_rows.tolist() == [5, 11, 17]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gets_what_a_cpu_gets(batch, ragged):
    on_gpu = InputBatch(
        max_rows=32,
        max_seqs=8,
        num_request_rows=6,
        max_blocks=5,
        block_size=BLOCK,
        device=torch.device("cuda"),
    )
    batch.fill(ragged)
    batch.send(5, 16)
    for request in ragged.requests:
        request.table_row = NO_ROW
    on_gpu.fill(ragged)
    on_gpu.send(5, 16)
    for name, length in (("input_ids", 16), ("positions", 16), ("slot_mapping", 16), ("cu_seqlens_q", 6)):
        assert getattr(on_gpu, name)[:length].tolist() == getattr(batch, name)[:length].tolist()
    assert on_gpu.block_tables[:5].tolist() == batch.block_tables[:5].tolist()
    assert on_gpu.logits_rows.tolist() == batch.logits_rows.tolist()
