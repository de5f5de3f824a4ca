"""Rotation against complex numbers in float64."""

from __future__ import annotations

import pytest
import torch

from atom.models.layers import RotaryEmbedding


def reference(heads: torch.Tensor, positions: torch.Tensor, theta: float, rotary_dim: int) -> torch.Tensor:
    """Pairs (i, i + half) of the first `rotary_dim` dimensions as complex numbers, turned."""
    half = rotary_dim // 2
    wide = heads.double()
    pairs = torch.complex(wide[..., :half], wide[..., half:rotary_dim])
    angles = positions.double()[:, None] / theta ** (torch.arange(half).double() / half)
    turned = pairs * torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    return torch.cat((turned.real, turned.imag, wide[..., rotary_dim:]), dim=-1)


@pytest.mark.parametrize("rotary_dim", [16, 8])
def test_heads_are_turned_by_their_position(rotary_dim):
    torch.manual_seed(0)
    rotary = RotaryEmbedding(16, max_position=64, theta=1e4, rotary_dim=rotary_dim)
    heads, positions = torch.randn(5, 3, 16), torch.tensor([0, 1, 7, 63, 7])
    turned = rotary.rotate(heads, rotary(positions))
    torch.testing.assert_close(
        turned, reference(heads, positions, 1e4, rotary_dim).float(), atol=2e-5, rtol=1e-5
    )
    assert torch.equal(turned[0], heads[0])


def test_a_slice_of_fused_heads_is_turned_and_left_alone():
    rotary = RotaryEmbedding(16, max_position=8, theta=1e4)
    fused = torch.randn(2, 5, 16)
    before = fused.clone()
    cos_sin = rotary(torch.tensor([3, 4]))
    assert torch.equal(
        rotary.rotate(fused[:, :3], cos_sin), rotary.rotate(before[:, :3].contiguous(), cos_sin)
    )
    assert torch.equal(fused, before)


def test_scores_depend_on_the_distance_alone():
    torch.manual_seed(0)
    rotary = RotaryEmbedding(32, max_position=256, theta=1e4)
    query, key = torch.randn(1, 1, 32), torch.randn(1, 1, 32)

    def score(i: int, j: int) -> torch.Tensor:
        turned = [rotary.rotate(x, rotary(torch.tensor([at]))) for x, at in ((query, i), (key, j))]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score(40, 33), score(207, 200), atol=1e-4, rtol=1e-4)


def test_low_precision_heads_are_rounded_once():
    rotary = RotaryEmbedding(16, max_position=64, theta=1e4)
    heads, cos_sin = torch.randn(4, 2, 16).bfloat16(), rotary(torch.tensor([5, 9, 30, 63]))
    assert torch.equal(rotary.rotate(heads, cos_sin), rotary.rotate(heads.float(), cos_sin).bfloat16())


def test_the_tables_are_float32_and_no_weights():
    rotary = RotaryEmbedding(16, max_position=64, theta=1e4)
    assert rotary.cos.shape == rotary.sin.shape == (64, 1, 16)
    assert rotary.cos.dtype == rotary.sin.dtype == torch.float32
    assert not rotary.state_dict()
