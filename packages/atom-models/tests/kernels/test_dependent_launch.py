import importlib
import inspect
import pkgutil

import pytest
import torch

import atom.models.kernels as package
from atom.models.kernels import dependent_launch
from atom.models.kernels.launch import Launcher

READS_WEIGHTS_EARLY = {"_gemv_kernel", "_rms_norm_kernel"}


def overlapping_kernels():
    found = {}
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not module.ispkg:
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, Launcher) and value.overlaps:
                    function = getattr(value.kernel, "fn", value.kernel)
                    found[function.__name__] = inspect.getsource(function)
    return found


KERNELS = overlapping_kernels()


@pytest.fixture(autouse=True)
def _device_default_afterwards():
    yield
    dependent_launch.set_enabled(None)


def test_all_kernels_take_part():
    assert len(KERNELS) >= 14


@pytest.mark.parametrize("name", list(KERNELS))
def test_a_kernel_waits_before_it_touches_what_others_touch(name):
    before, waits, after = KERNELS[name].partition("    inputs_ready(OVERLAP)\n    let_next_start(OVERLAP)\n")
    assert waits, "the wait comes first, then the next kernel may start"
    assert "tl.store" not in before
    assert "atomic" not in before
    reads_early = "tl.load" in before or "_weights(" in before
    assert reads_early == (name in READS_WEIGHTS_EARLY)
    assert "inputs_ready" not in after


def test_it_can_be_turned_off_and_on():
    dependent_launch.set_enabled(False)
    assert not dependent_launch.is_enabled()
    dependent_launch.set_enabled(True)
    assert dependent_launch.is_enabled()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device")
def test_a_long_chain_gives_the_bits_of_launches_one_by_one():
    from atom.models.kernels.gemv import gemv
    from atom.models.kernels.rms_norm import add_rms_norm
    from atom.models.kernels.silu_mul import silu_mul

    gain = torch.ones(2048, device="cuda")
    weights = [torch.randn(4096, 2048, device="cuda") / 2048**0.5 for _ in range(4)]
    start = torch.randn(1, 2048, device="cuda")
    torch.cuda.synchronize()

    def chain(pause):
        x, residual = start.clone(), torch.zeros_like(start)
        for step in range(200):
            x, residual = add_rms_norm(x, residual, gain, 1e-5)
            pause()
            x = gemv(x, weights[step % 4])
            pause()
            x = silu_mul(x)
            pause()
        return x

    assert torch.equal(chain(lambda: None), chain(torch.cuda.synchronize))
