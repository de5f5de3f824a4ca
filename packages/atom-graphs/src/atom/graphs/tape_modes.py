"""The tape's two ways into torch: every op through a dispatch mode, and host reads that never become one.

A function mode would see the latter too, but torch itself takes other paths while one is active (its fused
transformer layer, for one), and a recording must not change what a model computes.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes
from torch.utils._python_dispatch import _pop_mode as pop_mode
from torch.utils._python_dispatch import _push_mode as push_mode

from atom.graphs.wrapping import wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OURS = (str(Path(__file__).parent), str(Path(torch.__file__).parent))
HOST_READS = ("cpu", "numpy", "tolist", "__array__", "data_ptr", "to")


class Listener(Protocol):
    """What is reported to."""

    def on_host_read(self, method: str, tensor: torch.Tensor, args: tuple[Any, ...]) -> None: ...

    def on_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def opaque(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class OpMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every op."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._listener = listener

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._listener.on_op(func, args, kwargs or {})

    def opaque_call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """For compiled pieces, which find this method on torch's mode stack without importing us."""
        return self._listener.opaque(fn, args, kwargs)


class LightOpMode(OpMode):  # type: ignore[no-untyped-call]
    """The same without torch's protection against Dynamo, whose import alone takes seconds."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._listener.on_op(func, args, kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def op_mode(listener: Listener) -> OpMode:
    """A mode for one recording: a process that never imported Dynamo has nothing to protect."""
    return OpMode(listener) if "torch._dynamo" in sys.modules else LightOpMode(listener)


@contextmanager
def watching_host_reads(listener: Listener) -> Iterator[None]:
    """Reports this thread's calls of tensor methods that read on the host without an op, before they run.

    Calls by torch and by this package are not reported: what they lead to, if anything, is an op.
    """
    thread = get_ident()

    def report(method: str) -> Callable[..., None]:
        def before(tensor: torch.Tensor, *args: Any) -> None:
            caller = sys._getframe(2).f_code.co_filename
            if get_ident() == thread and not caller.startswith(OURS):
                listener.on_host_read(method, tensor, args)

        return before

    with ExitStack() as methods:
        for method in HOST_READS:
            methods.enter_context(wrapped(torch.Tensor, method, report(method)))
        yield


@contextmanager
def without_op_mode(mode: OpMode) -> Iterator[None]:
    """Takes `mode` alone off torch's stack: modes the model pushed above it keep their effect.

    Nothing to do inside of an op, where torch has taken it off already.
    """
    stack = modes()
    if not any(m is mode for m in stack):
        yield
        return
    above = stack[[m is mode for m in stack].index(True) + 1 :]
    for _ in above:
        pop_mode()
    # Left by its own exit, which tells Dynamo too: compiled code called here is to run compiled.
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    for other in above:
        push_mode(other)
    try:
        yield
    finally:
        for _ in above:
            pop_mode()
        mode.__enter__()  # type: ignore[no-untyped-call]
        for other in above:
            push_mode(other)
