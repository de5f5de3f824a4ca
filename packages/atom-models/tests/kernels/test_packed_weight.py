import pytest
import torch

from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.packed_weight import pack, unpack


def test_packing_can_be_undone():
    weight = torch.randn(96, 256)
    assert torch.equal(unpack(pack(weight, 32, 64)), weight)


def test_a_tile_lies_in_one_piece():
    weight = torch.arange(64 * 128).view(64, 128)
    packed = pack(weight, 32, 64)
    assert torch.equal(packed.flatten()[: 32 * 64].view(32, 64), weight[:32, :64])
    assert torch.equal(packed[1, 1], weight[32:, 64:])


def test_tiles_that_do_not_divide_are_refused():
    with pytest.raises(KernelArgumentError, match="64 x 128 do not divide a weight of 65 x 128"):
        pack(torch.zeros(65, 128))
