"""Traces a forward once, without running it, and keeps what Dynamo's guards would check about sizes."""

from __future__ import annotations

import contextlib
import inspect
import re
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException

from atom.compile.buffer_check import check_no_buffer_update
from atom.compile.canonical import traced_values
from atom.compile.counter import compilation_counter
from atom.compile.errors import CompileError, CompileSettingError, ShapeError, TracingError
from atom.compile.graph_outputs import copied_graph
from atom.compile.monitor import compile_monitor
from atom.compile.size_guards import conditions_on, encode, exactly
from atom.compile.traced_forward import TracedForward

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import nn

    from atom.compile.size_guards import Condition

__all__ = ["trace_forward", "unsupported"]

Backend = "Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]"

_DYNAMO = {
    "automatic_dynamic_shapes": False,  # which dimensions vary was declared; nothing is guessed
    "assume_static_by_default": True,
    "automatic_dynamic_local_pgo": False,  # nor remembered from other processes
    "cache_size_limit": 64,
}


class _Traced(BaseException):
    """Raised where the compiled graph would run: tracing is all that was wanted."""


def trace_forward(
    module: nn.Module,
    forward: types.FunctionType,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    dynamic: Mapping[str, Sequence[int]],
    backend: Any,
    guards_added: Callable[[], list[tuple[Condition, dict[str, Any]]]] = list,
) -> TracedForward:
    """Trace `forward(module, *args, **kwargs)` and compile it with `backend`.

    Nothing of the forward runs: its side effects, ops and kernels do not happen.

    Args:
        forward: the plain function behind the module's forward.
        args: example arguments. They are not touched: tensors are traced through aliases of their own.
        dynamic: argument -> dimensions that vary from call to call.
        backend: as `torch.compile` takes it.
        guards_added: after the backend ran, further conditions on sizes and the symbols they speak of.

    Raises:
        TracingError: Dynamo cannot trace the forward; names the source line.
        BufferUpdateError: the forward assigns a buffer.
        ShapeError: a dimension declared dynamic became a constant; names it and the source line.
        CompileError: the backend failed.
    """
    compilation_counter.num_traces += 1
    function = _fresh_function(forward)
    capture = _Capture(function, dynamic, backend, guards_added)
    bound = inspect.signature(function).bind(module, *args, **kwargs)
    hook = torch._dynamo.convert_frame.register_bytecode_hook(capture.on_bytecode)
    try:
        with compile_monitor.step("trace"), _quiet_surroundings():
            _replace_by_aliases(bound, dynamic)
            compiled = torch.compile(function, backend=capture.backend, fullgraph=True, **_no_guards())
            compiled(*bound.args, **bound.kwargs)
    except _Traced:
        pass
    except BackendCompilerFailed as error:
        raise _backend_failure(error, module) from error
    except TorchDynamoException as error:
        raise unsupported(error, module) from error
    finally:
        hook.remove()
        capture.running = True
    if capture.code is None:
        raise TracingError(
            f"{type(module).__qualname__}.forward is not traced by Dynamo (is it wrapped or marked to be "
            "skipped?); level 0 runs it"
        )
    check_no_buffer_update(capture.code, module)
    return capture.result()


def unsupported(error: Exception, module: nn.Module) -> TracingError:
    """What Dynamo said, as one line that names the model's source line and a level that runs it."""
    reason = str(getattr(error, "msg", None) or error).strip().splitlines()
    line = next((text.strip() for text in reason if text.strip()), type(error).__name__)
    return TracingError(
        f"{type(module).__qualname__} cannot be traced{_place(error)}: {line}; level 0 (NO_COMPILATION) "
        "runs it"
    )


def _place(error: Exception) -> str:
    stack = getattr(error, "real_stack", None)
    if stack:
        frame = list(stack)[-1]
        return f" at {frame.filename}:{frame.lineno} ({(frame.line or '').strip()})"
    found = re.findall(r'File "([^"]+)", line (\d+)', str(error))
    return f" at {found[-1][0]}:{found[-1][1]}" if found else ""


def _backend_failure(error: BackendCompilerFailed, module: nn.Module) -> Exception:
    inner = error.inner_exception
    if isinstance(inner, CompileError | CompileSettingError):
        return inner.with_traceback(None)
    first = (str(inner).strip().splitlines() or [""])[0]
    return CompileError(
        f"{type(module).__qualname__}: the compiler failed with {type(inner).__name__}: {first}; "
        "level 0 (NO_COMPILATION) runs the model"
    )


def _fresh_function(forward: types.FunctionType) -> types.FunctionType:
    """A copy with a code object of its own: Dynamo keeps what it compiled by code object, so this trace meets
    no other instance's."""
    function = types.FunctionType(
        forward.__code__.replace(),
        forward.__globals__,
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    function.__kwdefaults__ = forward.__kwdefaults__
    function.__annotations__ = forward.__annotations__
    function.__qualname__ = forward.__qualname__
    function.__module__ = forward.__module__
    return function


def _replace_by_aliases(bound: inspect.BoundArguments, dynamic: Mapping[str, Sequence[int]]) -> None:
    """Trace aliases of the caller's tensors, with the dynamic dimensions marked."""
    for name, value in bound.arguments.items():
        if isinstance(value, torch.Tensor):
            alias = value.detach()
            for dim in dynamic.get(name, ()):
                torch._dynamo.mark_dynamic(alias, dim % alias.ndim)
            bound.arguments[name] = alias


@contextlib.contextmanager
def _quiet_surroundings() -> Iterator[None]:
    """No recorder's modes in the way (Dynamo would trace nothing under them), no gradients."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils import _python_dispatch

    settings = {name: value for name, value in _DYNAMO.items() if hasattr(torch._dynamo.config, name)}
    popped = []
    for _ in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
        popped.append(torch._C._pop_torch_function_stack())
    # Before torch 2.9 Dynamo looks at flags that modes leave set while they are off the stack.
    flags = {name: value for name, value in vars(_python_dispatch).items() if name.startswith("_is_in_")}
    try:
        with (
            torch.no_grad(),
            _python_dispatch._disable_current_modes(),
            torch._dynamo.config.patch(settings),
        ):
            vars(_python_dispatch).update({name: False for name, value in flags.items() if value is True})
            yield
    finally:
        vars(_python_dispatch).update(flags)
        for mode in reversed(popped):
            torch._C._push_on_torch_function_stack(mode)


def _no_guards() -> dict[str, Any]:
    """Dynamo need not build guards that the custom dispatcher never asks (torch 2.8 and newer)."""
    if "guard_filter_fn" not in inspect.getsource(torch.compile):
        return {}
    return {"options": {"guard_filter_fn": lambda guards: [False] * len(guards)}}


class _Capture:
    """Takes in what one trace brings up."""

    def __init__(
        self,
        function: types.FunctionType,
        dynamic: Mapping[str, Sequence[int]],
        backend: Any,
        guards_added: Callable[[], list[tuple[Condition, dict[str, Any]]]],
    ) -> None:
        self.code: types.CodeType | None = None
        self.running = False
        self._function = function
        self._dynamic = dynamic
        self._backend = backend
        self._guards_added = guards_added
        self._pattern: dict[tuple[str, int], Condition] = {}
        self._conditions: list[Condition] = []
        self._at_least: dict[str, int] = {}
        self._graph: fx.Graph | None = None

    def on_bytecode(self, code: types.CodeType, new_code: types.CodeType) -> types.CodeType | None:
        if code is self._function.__code__:
            self.code = new_code
        return None

    def backend(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        mode = torch._guards.TracingContext.get().fake_mode
        shape_env: Any = None if mode is None else mode.shape_env
        self._require_dynamic(shape_env)
        self._graph = copied_graph(gm).graph
        compiled = self._backend(gm, example_inputs)
        self._require_dynamic(shape_env)
        self._note_sizes(shape_env)

        def run_or_stop(*inputs: Any) -> Any:
            if self.running:
                return compiled(*inputs)
            raise _Traced

        return run_or_stop

    def result(self) -> TracedForward:
        if self.code is None:
            raise TracingError("nothing was traced")
        function = self._function
        closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        call = types.FunctionType(
            self.code,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            tuple(closure[name] for name in self.code.co_freevars),
        )
        call.__kwdefaults__ = function.__kwdefaults__
        return TracedForward(call, self.code, self._pattern, self._conditions, self._at_least, self._graph)

    def _traced_sizes(self, shape_env: Any) -> Iterator[tuple[str, int, Any]]:
        """Argument, dimension and traced size of every dynamic dimension that Dynamo looked at."""
        for tracked in shape_env.tracked_fakes or ():
            name = tracked.source.name
            text = name() if callable(name) else name
            argument = text.removeprefix("L['").removesuffix("']")
            if isinstance(tracked.fake, torch.Tensor) and argument in self._dynamic:
                for dim in self._dynamic[argument]:
                    yield argument, dim, tracked.fake.shape[dim]

    def _require_dynamic(self, shape_env: Any) -> None:
        for argument, dim, size in self._traced_sizes(shape_env):
            expression = size if isinstance(size, int) else shape_env.replace(size.node.expr)
            if not isinstance(expression, int) and not expression.is_number:
                continue
            where = "; ".join(
                _guard_place(guard) for guard in shape_env.guards if expression in guard.expr.atoms()
            )
            raise ShapeError(
                f"dimension {dim} of {argument!r} is declared dynamic but became the constant {expression}"
                f"{f' ({where})' if where else ''}: do not compare or reshape it with a number, or leave it "
                "out of dynamic_arg_dims"
            )

    def _note_sizes(self, shape_env: Any) -> None:
        symbols: set[Any] = set()
        expressions = {}
        for argument, dim, size in self._traced_sizes(shape_env):
            expressions[argument, dim] = shape_env.replace(size.node.expr)
            symbols |= expressions[argument, dim].free_symbols
        names = {symbol: str(symbol) for symbol in symbols}
        values = traced_values(shape_env)
        hints = {str(symbol): int(values[symbol]) for symbol in symbols}
        self._pattern = {place: encode(expression, names) for place, expression in expressions.items()}
        self._at_least = {str(symbol): _lower_bound(shape_env, symbol) for symbol in symbols}
        traced = [shape_env.replace(guard.expr) for guard in shape_env.guards]
        self._conditions = conditions_on(traced, names, hints)
        for condition, meanings in self._guards_added():
            renamed = _renamed(condition, {name: shape_env.replace(s) for name, s in meanings.items()})
            if renamed is None:
                self._conditions += exactly(hints)
            else:
                self._conditions.append(renamed)


def _lower_bound(shape_env: Any, symbol: Any) -> int:
    lower = shape_env.bound_sympy(symbol).lower
    return int(lower) if lower.is_finite else 0


def _guard_place(guard: Any) -> str:
    """Where in the model's source a condition came from, as far as torch knows."""
    place = getattr(guard.sloc, "maybe_user_loc", None) or guard.sloc.framework_loc
    return str(place) if place else str(guard.expr)


def _renamed(condition: Condition, meanings: Mapping[str, Any]) -> Condition | None:
    if isinstance(condition, str):
        meaning = meanings.get(condition)
        return str(meaning) if meaning is not None and meaning.is_Symbol else None
    if isinstance(condition, tuple | list):
        operands = [_renamed(operand, meanings) for operand in condition[1:]]
        return None if any(part is None for part in operands) else (condition[0], *operands)
    return condition
