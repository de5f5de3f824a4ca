import inspect
import subprocess
import sys

import pytest

from atom.models import kernels
from atom.models.kernels import triton_set
from atom.models.kernels.kernel_set import KernelSet, for_device
from atom.models.kernels.reference import torch_set


def test_the_cpu_gets_the_twins_and_a_device_the_kernels():
    assert for_device("cpu") is torch_set
    assert for_device("cuda:3") is triton_set


@pytest.mark.parametrize("name", torch_set.__all__)
def test_a_kernel_and_its_twin_have_one_signature(name):
    twin, kernel = getattr(torch_set, name), getattr(triton_set, name)
    assert inspect.signature(twin) == inspect.signature(kernel)
    promised = list(inspect.signature(getattr(KernelSet, name)).parameters.values())[1:]
    assert promised == list(inspect.signature(kernel).parameters.values())


def test_both_sets_hold_the_same_names():
    promised = {name for name in vars(KernelSet) if not name.startswith("_")}
    assert set(torch_set.__all__) == set(triton_set.__all__) == promised


def test_a_twin_lives_in_the_file_of_its_kernels_name():
    for name in torch_set.__all__:
        twin, kernel = getattr(torch_set, name).__module__, getattr(triton_set, name).__module__
        assert twin == kernel.replace("kernels.", "kernels.reference.")


def test_the_package_lists_what_it_exports_and_loads_no_triton():
    assert kernels.__all__ == sorted(kernels.__all__)
    code = (
        "import sys, torch; before = set(sys.modules); import atom.models.kernels;"
        "print('triton' in set(sys.modules) - before)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
