import pytest
import torch
import triton

from atom.models.kernels import launch as launch_module
from atom.models.kernels.launch import Launcher
from atom.models.kernels.silu_mul import _silu_mul_kernel

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device")]


class RecordingKernel:
    """Stands where a kernel does and notes how it was called."""

    arg_names = ("tensor", "number", "A", "B")

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        return lambda *args, **options: self.calls.append((grid, args, options))


def test_an_interpreted_kernel_always_goes_through_the_jit_front():
    kernel = RecordingKernel()
    launcher = Launcher(kernel)
    tensor = torch.zeros(4)

    launcher((2, 1, 1), (tensor, 3), (True, 64), num_warps=8, num_stages=2)
    launcher((2, 1, 1), (tensor, 3), (True, 64), num_warps=8, num_stages=2)

    options = {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": True}
    assert kernel.calls == [((2, 1, 1), (tensor, 3, True, 64), options)] * 2
    assert launcher.known_launches == 0


def test_an_empty_grid_launches_nothing():
    kernel = RecordingKernel()
    Launcher(kernel)((3, 0, 1), (), ())
    assert kernel.calls == []


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (2, 3, True),
        (1, 3, False),
        (16, 32, True),
        (16, 17, False),
        (3, 2**31, False),
        (16, 2**32, False),
        (1, 1, True),
    ],
)
def test_integers_share_a_launch_only_where_triton_compiles_them_alike(a, b, same):
    assert (launch_module._number_class(a) == launch_module._number_class(b)) is same


def silu_launch(launcher, rows, width=256, dtype=torch.float32, offset=0):
    both = torch.randn(rows * 2 * width + offset, device="cuda", dtype=torch.float32).to(dtype)[offset:]
    out = torch.full((rows, width), float("nan"), device="cuda", dtype=dtype)
    launcher((rows, 1, 1), (both, out), (2 * width, width, 256))
    gate, up = both.view(rows, 2 * width).float().chunk(2, dim=1)
    torch.testing.assert_close(out.float(), torch.nn.functional.silu(gate) * up, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("precompiled", [pytest.param(True, marks=gpu), pytest.param(False, marks=gpu)])
def test_direct_and_jit_launches_compute_the_same(precompiled):
    launcher = Launcher(_silu_mul_kernel, precompiled=precompiled)
    for rows in (1, 5, 5, 7):
        silu_launch(launcher, rows)
    assert launcher.known_launches == (1 if precompiled else 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device")
def test_another_dtype_or_alignment_is_another_launch():
    launcher = Launcher(_silu_mul_kernel)
    silu_launch(launcher, 3)
    silu_launch(launcher, 3, dtype=torch.bfloat16)
    silu_launch(launcher, 3, offset=1)  # 4 bytes past a 16-byte boundary: 16-byte loads would fault
    assert launcher.known_launches == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device")
def test_a_launch_hook_brings_the_jit_front_back(monkeypatch):
    launcher = Launcher(_silu_mul_kernel)
    silu_launch(launcher, 3)
    seen = []
    hooks = triton.knobs.runtime.launch_enter_hook
    if hooks is None:
        pytest.skip("this Triton has no chain of launch hooks")
    hooks.add(seen.append)
    try:
        silu_launch(launcher, 3)
    finally:
        hooks.remove(seen.append)
    assert len(seen) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device")
def test_a_direct_launch_can_be_recorded_in_a_graph():
    launcher = Launcher(_silu_mul_kernel)
    silu_launch(launcher, 4)
    both, out = torch.randn(4, 512, device="cuda"), torch.zeros(4, 256, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launcher((4, 1, 1), (both, out), (512, 256, 256))
    both.normal_()
    graph.replay()
    torch.cuda.synchronize()
    gate, up = both.chunk(2, dim=1)
    torch.testing.assert_close(out, torch.nn.functional.silu(gate) * up)
