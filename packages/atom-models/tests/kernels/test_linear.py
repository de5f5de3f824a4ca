import dataclasses

import pytest
import torch
import torch.nn.functional as F
from triton.runtime.errors import OutOfResources

from atom.models.kernels import linear as linear_module
from atom.models.kernels.errors import KernelArgumentError, KernelError
from atom.models.kernels.gemv import GemvConfig
from atom.models.kernels.linear import TORCH, Choice, LinearChooser, ProductKey, candidates
from atom.models.kernels.packed_weight import pack
from atom.models.kernels.reference import linear as twin
from atom.models.kernels.skinny_gemm import SkinnyConfig

gpu = pytest.mark.gpu
device_only = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device")


def key(rows, around=()):
    return ProductKey(rows, 4096, 4096, torch.bfloat16, torch.device("cuda", 0), around)


@pytest.fixture
def timed(monkeypatch):
    """A chooser whose candidates take the times given by a function; it counts the timings."""

    def make(milliseconds):
        calls = []

        def time(product, ways, repeats):
            calls.extend(ways)
            return {way: milliseconds(way) for way in ways}

        monkeypatch.setattr(linear_module, "_time", time)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        return LinearChooser(), calls

    return make


def test_before_measuring_one_row_takes_the_gemv_and_more_take_torch():
    chooser = LinearChooser()
    assert chooser.choose(key(1)) == Choice(GemvConfig())
    assert chooser.choose(key(8)) == TORCH
    assert chooser.choose(key(4096)) == TORCH


def test_the_fastest_is_remembered_and_not_timed_again(timed):
    chooser, calls = timed(lambda c: 1.0 if c.config and c.config.block_n == 32 else 2.0)
    chosen = chooser.measure(key(8))
    count = len(calls)
    assert chosen.config.block_n == 32
    assert chooser.measure(key(8)) == chooser.choose(key(8)) == chosen
    assert len(calls) == count == len(candidates(key(8)))


def test_a_win_within_noise_stays_with_torch(timed):
    chooser, _ = timed(lambda c: 1.0 if c == TORCH else 0.99)
    assert chooser.measure(key(8)) == TORCH


def test_choices_are_kept_apart_by_everything_they_depend_on(timed):
    chooser, _ = timed(lambda c: 1.0 if c == TORCH else 0.5)
    chooser.measure(key(8))
    assert chooser.choose(key(9)) == TORCH
    assert chooser.choose(key(8, ("residual",))) == TORCH


def test_measuring_during_a_capture_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(KernelError, match="warm-up"):
        LinearChooser().measure(key(2))


def test_a_product_with_silu_is_never_split():
    configs = [choice.config for choice in candidates(key(8, ("silu",)))]
    assert all(config.split_k == 1 for config in configs if isinstance(config, SkinnyConfig))
    assert any(choice.config.split_k > 1 for choice in candidates(key(8)) if choice.config)


def test_a_tile_the_device_has_no_room_for_is_passed_over(monkeypatch):
    def time(run, *, repeats):
        assert repeats == 3
        if len(timed) == 1:
            raise OutOfResources(300_000, 232_448, "shared memory")
        return timed.append(1) or 1.0

    timed = []
    monkeypatch.setattr(linear_module, "time_in_graph", time)
    monkeypatch.setattr(linear_module, "_copies_past_cache", lambda product: 1)
    ways = [TORCH, Choice(GemvConfig(2, 64, 4))]
    small = ProductKey(1, 8, 64, torch.float32, torch.device("cpu"))
    assert list(linear_module._time(small, ways, 3)) == [TORCH]


def test_packed_ways_are_candidates_only_of_packed_weights():
    packed = dataclasses.replace(key(8), tile=(64, 128))
    assert any(choice.packed for choice in candidates(packed))
    assert not any(choice.packed for choice in candidates(key(8)))


def test_a_norm_before_one_row_is_tried_fused_and_apart():
    tried = {choice.fused_norm for choice in candidates(key(1, ("norm",))) if choice.config}
    assert tried == {False, True}


def test_silu_with_a_bias_is_refused():
    with pytest.raises(KernelArgumentError, match="silu takes no bias"):
        linear_module.linear(torch.zeros(1, 4), torch.zeros(4, 4), bias=torch.zeros(4), silu=True)


def test_many_rows_leave_only_torch():
    assert candidates(key(65)) == [TORCH]


def test_twin_is_the_separate_operations(random):
    x, weight, gain, residual = random(3, 16), random(12, 16), random(16), random(3, 6)
    gate, up = F.linear(F.rms_norm(x, (16,), gain, 1e-5), weight).chunk(2, dim=1)
    actual = twin.linear(x, weight, norm_weight=gain, eps=1e-5, silu=True, residual=residual)
    torch.testing.assert_close(actual, F.silu(gate) * up + residual)


@gpu
@device_only
@pytest.mark.parametrize("rows", [1, 3, 16, 40, 100])
@pytest.mark.parametrize("fused", [False, True])
def test_every_candidate_computes_the_product(rows, fused):
    x = torch.randn(rows, 512, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16) * 0.05
    tiles = pack(weight)
    torch.cuda.synchronize()  # a weight must not be the work of the launch just before
    residual, gain, silu = (x.new_ones(rows, 128), x[0].clone(), True) if fused else (None, None, False)
    wide = [None if tensor is None else tensor.double() for tensor in (residual, gain)]
    exact = twin.linear(
        x.double(), weight.double(), residual=wide[0], norm_weight=wide[1], eps=1e-5, silu=silu
    )
    for way in candidates(linear_module._key(x, weight, tiles, residual, gain, silu)):
        actual = linear_module._compute(way, x, weight, tiles, None, residual, gain, 1e-5, silu)
        error = (actual.double() - exact).norm() / exact.norm()
        assert error < 1.2e-2, way


@gpu
@device_only
def test_measuring_settles_a_choice_that_is_used_afterwards(monkeypatch):
    monkeypatch.setattr(linear_module, "chooser", LinearChooser())
    x = torch.randn(4, 1024, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(2048, 1024, device="cuda", dtype=torch.bfloat16)
    with linear_module.measuring():
        first = linear_module.linear(x, weight)
    (measured,) = linear_module.chooser.milliseconds.values()
    assert all(0 < time < 10 for time in measured.values())
    assert torch.equal(linear_module.linear(x, weight), first)
