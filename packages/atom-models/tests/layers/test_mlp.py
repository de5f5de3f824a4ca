"""The gated MLP against its definition."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from atom.models.layers import GatedMLP, silu_mul


@pytest.mark.parametrize("bias", [False, True])
def test_the_mlp_is_down_of_silu_gate_times_up(bias):
    torch.manual_seed(0)
    mlp = GatedMLP(16, 24, bias=bias)
    for parameter in mlp.parameters():
        parameter.data.normal_()
    x = torch.randn(3, 16)

    def part(name: str) -> torch.Tensor:
        offset = mlp.gate_up_proj.part(name, "bias") if bias else None
        return F.linear(x, mlp.gate_up_proj.part(name), offset)

    wanted = F.linear(F.silu(part("gate")) * part("up"), mlp.down_proj.weight, mlp.down_proj.bias)
    torch.testing.assert_close(mlp(x), wanted)


def test_the_gate_is_the_first_half():
    gate, up = torch.randn(2, 5), torch.randn(2, 5)
    torch.testing.assert_close(silu_mul(torch.cat((gate, up), -1)), F.silu(gate) * up)
