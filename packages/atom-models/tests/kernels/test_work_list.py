import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atom.models.kernels.attention_plan import PrefillPlan, plan_prefill
from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.reference import work_list as twin


def bucket_plan(rows, max_seqs, group=4):
    return plan_prefill(
        rows=rows, max_seqs=max_seqs, heads=group, kv_heads=1, head_dim=128, max_seqlen_k=1024,
        dtype=torch.bfloat16, processors=8,
    )  # fmt: skip


def step(counts, cached, device):
    starts = torch.tensor([0, *counts]).cumsum(0).to(device, torch.int32)
    return starts, torch.tensor(cached, dtype=torch.int32, device=device)


@pytest.mark.parametrize(
    ("counts", "cached", "rows"),
    [
        ([5], [5], 5),
        ([100, 1, 0, 33], [100, 900, 0, 40], 160),
        ([1] * 16, list(range(1, 17)), 16),
        ([0, 0, 0], [0, 0, 0], 64),
        ([1, 200, 1, 200, 1], [1, 200, 7, 333, 64], 512),
    ],
)
def test_device_list_equals_its_twin(backend, counts, cached, rows):
    starts, lengths = step(counts, cached, backend.device)
    plan = bucket_plan(rows, len(counts))
    work = torch.full((plan.items, 4), -7, dtype=torch.int32, device=backend.device)

    backend.call("work_list.build_work_list", starts, lengths, rows, plan, work)

    wanted = torch.zeros(plan.items, 4, dtype=torch.int32)
    twin.build_work_list(starts, lengths, rows, plan, wanted)
    live = wanted[:, 2] > 0
    assert torch.equal(work.cpu()[live], wanted[live])
    assert (work.cpu()[~live, 2] == 0).all()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_planned_items_cover_every_row_of_any_step_once(data):
    counts = data.draw(st.lists(st.integers(0, 70), min_size=1, max_size=12))
    padding = data.draw(st.integers(0, 40))
    rows = max(1, sum(counts) + padding)
    group = data.draw(st.sampled_from([1, 3, 4, 8]))
    starts, lengths = step(counts, [c + 3 if c else 0 for c in counts], "cpu")
    plan = bucket_plan(rows, len(counts), group)
    work = torch.zeros(plan.items, 4, dtype=torch.int32)

    twin.build_work_list(starts, lengths, rows, plan, work)

    covered = [row for _, first, count, _ in work.tolist() for row in range(first, first + count)]
    assert sorted(covered) == list(range(rows))


def test_a_sequences_last_tile_comes_first():
    plan = PrefillPlan(block_q=16, items=8, splits=1, block_n=64, num_warps=4, num_stages=2)
    work = torch.zeros(8, 4, dtype=torch.int32)
    twin.build_work_list(*step([40], [100], "cpu"), 40, plan, work)
    assert work[:3].tolist() == [[0, 32, 8, 100], [0, 16, 16, 92], [0, 0, 16, 76]]


def test_lengths_that_do_not_match_are_refused(backend):
    starts, lengths = step([4, 4], [4, 4], backend.device)
    plan = bucket_plan(8, 2)
    work = torch.zeros(plan.items, 4, dtype=torch.int32, device=backend.device)
    with pytest.raises(KernelArgumentError, match="cu_seqlens_q"):
        backend.call("work_list.build_work_list", starts[:2], lengths, 8, plan, work)
