"""Launch a compiled Triton kernel without the JIT front.

`kernel[grid](...)` binds, specializes and hashes every argument on every call. A `Launcher` keeps what that
work arrived at, under a key that holds all Triton itself specializes on: dtypes, pointer alignment, whether
an integer is 1 or a multiple of 16 and how wide it is, the compile-time constants, warps, stages and device.
A known key goes straight to the driver; the first call of a key goes through the JIT front, which compiles as
always. The JIT front also serves every call (the fallback) when

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

from atom.models.kernels import dependent_launch
from atom.models.kernels.jit import is_interpreted

Grid = tuple[int, int, int]

_INT32_MAX = 2**31 - 1
_IS_HIP = torch.version.hip is not None
_RUNTIME = triton.knobs.runtime


class Launcher:
    """Calls one kernel whose parameters come in the order: tensors and run-time numbers, then constants.

    A kernel whose last constant is called OVERLAP gets it from `dependent_launch`.
    """

    def __init__(self, kernel: Any, *, precompiled: bool = True) -> None:
        self.kernel = kernel
        self.precompiled = precompiled and not is_interpreted(kernel)
        self.overlaps = kernel.arg_names[-1] == "OVERLAP"
        self._known: dict[tuple[Any, ...], tuple[Any, Any, Any, tuple[Any, ...]]] = {}

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
        if 0 in grid:
            return
        if not self.precompiled or _hooks_installed():
            self._through_jit(grid, args, constants, num_warps, num_stages)
            return
        device = torch._C._cuda_getDevice()
        key: list[Any] = [device, num_warps, num_stages, constants]
        raw: list[Any] = []
        for arg in args:
            if isinstance(arg, torch.Tensor):
                address = arg.data_ptr()
                raw.append(address)
                key += (arg.dtype, address & 15)
                if _IS_HIP:  # Triton there also specializes on whether 32-bit offsets reach the whole storage
                    key.append(arg.untyped_storage().size() <= _INT32_MAX)
            else:
                raw.append(arg)
                key.append(_number_class(arg) if type(arg) is int else type(arg))
        known = tuple(key)
        found = self._known.get(known)
        if found is None:
            compiled = self._through_jit(grid, args, constants, num_warps, num_stages)
            self._remember(known, compiled, constants)
            return
        run, function, metadata, fixed = found
        stream = torch._C._cuda_getCurrentRawStream(device)
        run(*grid, stream, function, metadata, None, None, None, *raw, *fixed)

    @property
    def known_launches(self) -> int:
        """How many distinct specializations launch directly."""
        return len(self._known)

    def _through_jit(
        self, grid: Grid, args: tuple[Any, ...], constants: tuple[Any, ...], num_warps: int, num_stages: int
    ) -> Any:
        # fusion is said outright because Triton is changing its default, and a dot product wants fused
        # multiply-adds
        options: dict[str, Any] = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
        if self.overlaps:
            overlap = self.precompiled and dependent_launch.is_enabled()
            constants = (*constants, overlap)
            if overlap:
                options["launch_pdl"] = True
        return self.kernel[grid](*args, *constants, **options)

    def _remember(self, key: tuple[Any, ...], compiled: Any, constants: tuple[Any, ...]) -> None:
        fields = ("run", "function", "packed_metadata")
        if all(hasattr(compiled, field) for field in fields):
            fixed = (*constants, dependent_launch.is_enabled()) if self.overlaps else constants
            run = compiled.run  # reading it loads the binary, so `function` is valid from here on
            self._known[key] = (run, compiled.function, compiled.packed_metadata, fixed)
        else:
            self.precompiled = False


def _number_class(value: int) -> int:
    """The part of an integer that Triton compiles in: is it 1, a multiple of 16, does it need 64 bits."""
    if value == 1:
        return 1
    return (2 if value & 15 == 0 else 3) + (0 if -_INT32_MAX - 1 <= value <= _INT32_MAX else 2)


def _hooks_installed() -> bool:
    enter, leave = _RUNTIME.launch_enter_hook, _RUNTIME.launch_exit_hook
    # one hook or None before Triton 3.5, a chain of them since
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))
