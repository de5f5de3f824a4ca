"""Launch a compiled Triton kernel without the JIT front.

`kernel[grid](...)` binds, specializes and hashes every argument on every call, about 17 microseconds of host
time. A `Launcher` keeps what that work arrived at, under a key that holds all Triton itself specializes on:
dtypes, pointer alignment, whether an integer is 1 or a multiple of 16 and how wide it is, the compile-time
constants, warps, stages and device. A known key goes straight to the driver; the first call of a key goes
through the JIT front, which compiles as always. The JIT front also serves every call (the fallback) when

- the kernel is interpreted (TRITON_INTERPRET=1),
- the installed Triton returns a compiled kernel without the three fields needed here,
- a Triton launch hook is installed (Triton's own profiler), since the direct path would not call it,
- the launcher was made with `precompiled=False`.

As with Triton itself, the current device must be the one the tensors live on.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from atom.models.kernels.jit import is_interpreted

Grid = tuple[int, int, int]

_INT32_MAX = 2**31 - 1


class Launcher:
    """Calls one kernel whose parameters come in the order: tensors and run-time numbers, then constants."""

    def __init__(self, kernel: Any, *, precompiled: bool = True) -> None:
        self.kernel = kernel
        self.precompiled = precompiled and not is_interpreted(kernel)
        self._known: dict[tuple[Any, ...], tuple[Any, Any, Any]] = {}

    def __call__(
        self,
        grid: Grid,
        args: tuple[Any, ...],
        constants: tuple[Any, ...],
        num_warps: int = 4,
        num_stages: int = 3,
    ) -> None:
        """Launch on the current stream.

        `args` are tensors, ints, floats or None; `constants` are the kernel's `tl.constexpr` parameters. An
        empty grid launches nothing.
        """
        if not (grid[0] and grid[1] and grid[2]):
            return
        if not self.precompiled or _hooks_installed():
            self._through_jit(grid, args, constants, num_warps, num_stages)
            return
        device = torch.cuda.current_device()
        key: list[Any] = [device, num_warps, num_stages, constants]
        raw: list[Any] = []
        for arg in args:
            if isinstance(arg, torch.Tensor):
                address = arg.data_ptr()
                key.append(arg.dtype)
                key.append(address & 15 == 0)
                if _IS_HIP:  # Triton there also specializes on whether 32-bit offsets reach the whole storage
                    key.append(arg.untyped_storage().size() <= _INT32_MAX)
                raw.append(address)
            else:
                key.append(_number_class(arg) if type(arg) is int else type(arg))
                raw.append(arg)
        found = self._known.get(tuple(key))
        if found is None:
            compiled = self._through_jit(grid, args, constants, num_warps, num_stages)
            self._remember(tuple(key), compiled)
            return
        run, function, metadata = found
        stream = torch._C._cuda_getCurrentRawStream(device)
        run(*grid, stream, function, metadata, None, None, None, *raw, *constants)

    @property
    def known_launches(self) -> int:
        """How many distinct specializations launch directly."""
        return len(self._known)

    def _through_jit(
        self, grid: Grid, args: tuple[Any, ...], constants: tuple[Any, ...], num_warps: int, num_stages: int
    ) -> Any:
        # said outright because Triton is changing its default, and a dot product wants fused multiply-adds
        options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
        return self.kernel[grid](*args, *constants, **options)

    def _remember(self, key: tuple[Any, ...], compiled: Any) -> None:
        fields = ("run", "function", "packed_metadata")
        if all(hasattr(compiled, field) for field in fields):
            run = compiled.run  # reading it loads the binary, so `function` is valid from here on
            self._known[key] = (run, compiled.function, compiled.packed_metadata)
        else:
            self.precompiled = False


_IS_HIP = torch.version.hip is not None


def _number_class(value: int) -> int:
    """The part of an integer that Triton compiles in: is it 1, a multiple of 16, does it need 64 bits."""
    if value == 1:
        return 1
    return (2 if value & 15 == 0 else 3) + (0 if -_INT32_MAX - 1 <= value <= _INT32_MAX else 2)


def _hooks_installed() -> bool:
    runtime = triton.knobs.runtime
    return bool(getattr(runtime.launch_enter_hook, "calls", runtime.launch_enter_hook)) or bool(
        getattr(runtime.launch_exit_hook, "calls", runtime.launch_exit_hook)
    )
