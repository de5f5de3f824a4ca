"""Both ways a kernel test runs: Triton's interpreter in a child process, and the device if there is one."""

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

_WORKER = Path(__file__).with_name("interpreter_worker.py")
_spec = importlib.util.spec_from_file_location("atom_interpreter_worker", _WORKER)
_protocol = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_protocol)


class Interpreter:
    """Calls kernel wrappers in the child; in-place changes of tensor arguments come back."""

    device = torch.device("cpu")
    is_device = False

    def __init__(self) -> None:
        environment = {
            **os.environ,
            "TRITON_INTERPRET": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
        }
        self.process = subprocess.Popen(
            [sys.executable, str(_WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        module, function = name.rsplit(".", 1)
        _protocol.write_message(self.process.stdin, (f"atom.models.kernels.{module}", function, args, kwargs))
        status, result, new_args, new_kwargs = _protocol.read_message(self.process.stdout)
        if status == "failed":
            result.add_note(new_args)
            raise result
        for old, new in [*zip(args, new_args, strict=True), *((kwargs[k], new_kwargs[k]) for k in kwargs)]:
            if isinstance(old, torch.Tensor):
                old.copy_(new)
        return result

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


class Device:
    """Calls kernel wrappers here, on the current CUDA or HIP device."""

    device = torch.device("cuda")
    is_device = True

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        module, function = name.rsplit(".", 1)
        result = getattr(importlib.import_module(f"atom.models.kernels.{module}"), function)(*args, **kwargs)
        torch.cuda.synchronize()
        return result


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    child = Interpreter()
    yield child
    child.close()


@pytest.fixture(
    params=[
        "interpreter",
        pytest.param(
            "device",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or HIP device"),
            ],
        ),
    ]
)
def backend(request: pytest.FixtureRequest) -> Interpreter | Device:
    """Where the kernel of the test runs."""
    return request.getfixturevalue("interpreter") if request.param == "interpreter" else Device()


@pytest.fixture
def random(backend: Interpreter | Device) -> Callable[..., torch.Tensor]:
    """Fresh normal numbers, other ones in every test run; the seed is in the failure's captured output."""
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        return values.to(dtype).to(backend.device)

    draw.generator = generator
    return draw


@pytest.fixture
def poisoned(backend: Interpreter | Device) -> Callable[..., torch.Tensor]:
    """An output full of NaN: what a kernel does not write stays visible."""

    def make(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full(shape, float("nan"), dtype=dtype, device=backend.device)

    return make


@pytest.fixture
def close(backend: Interpreter | Device) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Assert that a result is its float64 twin up to rounding of the result's own dtype; NaN never passes."""
    # the interpreter cuts bf16 off where a device rounds
    limits = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3 if backend.is_device else 1.6e-2}

    def check(actual: torch.Tensor, expected: torch.Tensor, limit: float | None = None) -> None:
        assert actual.shape == expected.shape
        assert torch.isfinite(actual.float()).all(), "output holds NaN or infinity"
        wide, exact = actual.double().cpu(), expected.double().cpu()
        error = float((wide - exact).norm() / exact.norm().clamp(min=1e-30))
        allowed = limits[actual.dtype] if limit is None else limit
        assert error <= allowed, f"relative error {error:.3g} above {allowed:.3g} ({actual.dtype})"

    return check


@pytest.fixture
def paged(random: Callable[..., torch.Tensor], backend: Interpreter | Device) -> Callable[..., Any]:
    """A paged cache holding given sequences in shuffled blocks; what no sequence owns is NaN."""

    def make(
        seq_lens: list[int],
        *,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        cache_dtype: torch.dtype | None = None,
        width: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        stored = cache_dtype or dtype
        needed = [-(-length // block_size) for length in seq_lens]
        width = width or max(1, *needed)
        total = 1 + sum(needed)
        order = (torch.randperm(total - 1, generator=random.generator) + 1).tolist()
        tables = torch.zeros(len(seq_lens), width, dtype=torch.int32)
        caches = [torch.full((total, block_size, kv_heads, head_dim), float("nan"), dtype=torch.float32)] * 2
        caches = [cache.clone() for cache in caches]
        for seq, length in enumerate(seq_lens):
            blocks = [order.pop() for _ in range(needed[seq])]
            tables[seq, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
            for place in range(length):
                block, offset = blocks[place // block_size], place % block_size
                for cache in caches:
                    cache[block, offset] = torch.randn(kv_heads, head_dim, generator=random.generator)
        keys, values = (cache.to(stored).to(backend.device) for cache in caches)
        lengths = torch.tensor(seq_lens, dtype=torch.int32, device=backend.device)
        return keys, values, tables.to(backend.device), lengths

    return make
