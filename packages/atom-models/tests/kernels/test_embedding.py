import pytest
import torch

from atom.models.kernels.reference import embedding as twin


@pytest.mark.parametrize("ids_dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 576), (129, 48), (7, 1030)])
def test_gather_copies_rows_exactly(backend, random, rows, hidden, ids_dtype):
    table = random(97, hidden, dtype=torch.bfloat16)
    ids = torch.randint(0, 97, (rows,), generator=random.generator).to(backend.device, ids_dtype)

    actual = backend.call("embedding.embedding", ids, table)

    assert torch.equal(actual, table[ids.long()])


def test_ids_outside_a_ranks_share_give_zeros(backend, random):
    table = random(10, 32)
    ids = torch.tensor([19, 20, 29, 30, 0], device=backend.device)

    actual = backend.call("embedding.embedding", ids, table, 20)

    assert torch.equal(actual, twin.embedding(ids, table, 20))
    assert actual[[0, 3, 4]].abs().sum() == 0
    assert torch.equal(actual[1:3], table[[0, 9]])
