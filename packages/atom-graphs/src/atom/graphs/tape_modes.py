"""The two hooks of a tape into torch, and stepping out of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from torch.overrides import TorchFunctionMode
from torch.overrides import _get_current_function_mode_stack as function_modes
from torch.overrides import _pop_mode as pop_function_mode
from torch.overrides import _push_mode as push_function_mode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as dispatch_modes
from torch.utils._python_dispatch import _pop_mode as pop_dispatch_mode
from torch.utils._python_dispatch import _push_mode as push_dispatch_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Listener(Protocol):
    """What the modes report to."""

    def on_function(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None: ...

    def on_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def opaque(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class FunctionMode(TorchFunctionMode):
    """Sees calls that never reach a dispatcher, such as `Tensor.numpy`."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._listener.on_function(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


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


@contextmanager
def without_function_mode(mode: FunctionMode) -> Iterator[None]:
    """Takes `mode` alone off torch's stack: modes the model pushed above it keep their effect."""
    with _without(mode, function_modes, pop_function_mode, push_function_mode):
        yield


@contextmanager
def without_op_mode(mode: OpMode) -> Iterator[None]:
    """The same for the dispatch mode; nothing to do inside of an op, where torch has taken it off already."""
    with _without(mode, dispatch_modes, pop_dispatch_mode, push_dispatch_mode):
        yield


@contextmanager
def _without(
    mode: object, stack: Callable[[], Any], pop: Callable[[], Any], push: Callable[[Any], Any]
) -> Iterator[None]:
    above: list[Any] = []
    present = any(m is mode for m in stack())
    if present:
        while (top := pop()) is not mode:
            above.append(top)
    for other in reversed(above):
        push(other)
    try:
        yield
    finally:
        for _ in above:
            pop()
        if present:
            push(mode)
        for other in reversed(above):
            push(other)
