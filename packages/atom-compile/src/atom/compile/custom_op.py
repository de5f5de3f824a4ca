"""Registration of custom operators with `torch.library`.

An op registered here is opaque to Dynamo and Inductor: they see its schema and its fake implementation,
never its body. That makes it a place to split a graph at, and the only place where a compiled model may
read what is not a tensor (the forward context, a KV cache).
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.library import Library, infer_schema

from atom.compile.errors import CustomOpError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch._ops import OpOverload

__all__ = ["aiter_lib", "direct_register_custom_op", "op_overload", "registered_op_func"]

aiter_lib = Library("aiter", "FRAGMENT")  # type: ignore[no-untyped-call]
"""The library that ops go to when no other is named, so that they are called `aiter.<op>`."""

_op_funcs: dict[str, Callable[..., Any]] = {}
"""`ns::op` -> the function registered for it here (used to find eager regions behind ops)."""


class _Argument(NamedTuple):
    """What makes two schema arguments the same; alias sets are told by being written to, not by name."""

    name: str
    type: str
    default: str
    kwarg_only: bool
    written: bool


def direct_register_custom_op(
    op_name: str,
    op_func: Callable[..., Any],
    mutates_args: Sequence[str],
    fake_impl: Callable[..., Any] | None = None,
    target_lib: Library | None = None,
    dispatch_key: str = "CUDA",
    tags: Sequence[torch.Tag] = (),
) -> None:
    """Register `op_func` as `<library>.<op_name>`; a call costs less than with `torch.library.custom_op`.

    The schema is inferred from the annotations of `op_func` (of the function it wraps, when it is a
    wrapper), so an eager region can be registered directly.

    Args:
        op_name: name without namespace.
        op_func: the implementation; every parameter annotated, no output aliasing an input.
        mutates_args: names of the tensor arguments written in place.
        fake_impl: computes output shapes without running the op. May be left out for an op that returns
            nothing.
        target_lib: the library to register in; `aiter_lib` when left out.
        dispatch_key: the default "CUDA" (which HIP devices use as well) registers the CPU too, so the same
            model runs on either; any other key registers that key only.
        tags: `torch.Tag`s of the op.

    If the op exists already with an equal schema, it is kept: only devices that have no implementation
    yet get this one, so that installing a library which ships its own kernels wins.

    Raises:
        CustomOpError: the schema cannot be inferred, or the op exists with another schema.
    """
    library = aiter_lib if target_lib is None else target_lib
    qualified = f"{library.ns}::{op_name}"
    try:
        signature = infer_schema(inspect.unwrap(op_func), mutates_args=tuple(mutates_args))
    except (ValueError, TypeError) as error:
        raise CustomOpError(
            f"op {qualified}: no schema can be inferred from {_where(op_func)}: {error}"
        ) from error

    existing = _find_overload(qualified)
    if existing is None:
        library.define(f"{op_name}{signature}", tags=tuple(tags))  # type: ignore[no-untyped-call]
    else:
        _require_equal_schema(qualified, existing, f"{op_name}{signature}", op_func)

    for key in ("CUDA", "CPU") if dispatch_key == "CUDA" else (dispatch_key,):
        if not torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key):
            library.impl(op_name, op_func, dispatch_key=key)  # type: ignore[no-untyped-call]
            _op_funcs.setdefault(qualified, op_func)
    if existing is None:
        _register_fake(library, qualified, fake_impl)


def op_overload(name: str) -> OpOverload:
    """The op called `name` (`ns.op`, `ns::op` or `ns.op.overload`), default overload when none is given.

    Raises:
        CustomOpError: there is no such op; the message says how to register one.
    """
    namespace, _, rest = name.replace("::", ".").partition(".")
    base, _, overload = rest.partition(".")
    found = _find_overload(f"{namespace}::{base}", overload or "default") if base else None
    if found is None:
        raise CustomOpError(
            f"op {name!r} is not registered: import the module that registers it, or register it with "
            "direct_register_custom_op (names read 'namespace.op')"
        )
    return found


def registered_op_func(op: OpOverload) -> Callable[..., Any] | None:
    """The function that was registered here for `op`; None for ops registered elsewhere."""
    return _op_funcs.get(op._schema.name)


def _find_overload(qualified: str, overload: str = "default") -> OpOverload | None:
    namespace, _, base = qualified.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    found: OpOverload | None = getattr(packet, overload, None)
    return found


def _register_fake(library: Library, qualified: str, fake_impl: Callable[..., Any] | None) -> None:
    if fake_impl is None:
        op = _find_overload(qualified)
        if op is None or op._schema.returns:
            return  # torch's own message says what to register, at the first trace that needs it
        fake_impl = _returns_nothing
    torch.library.register_fake(qualified, fake_impl, lib=library)


def _returns_nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _require_equal_schema(
    qualified: str, existing: OpOverload, schema_text: str, op_func: Callable[..., Any]
) -> None:
    namespace = qualified.partition("::")[0]
    wanted = torch._C.parse_schema(f"{namespace}::{schema_text}")
    if _shape_of(existing._schema) == _shape_of(wanted):
        return
    owner = registered_op_func(existing)
    by = _where(owner) if owner is not None else f"another library that uses the namespace {namespace!r}"
    raise CustomOpError(
        f"op {qualified} exists with another schema: {existing._schema} (registered by {by}) is not "
        f"{wanted} ({_where(op_func)}); give one of them another name or library"
    )


def _shape_of(schema: Any) -> tuple[list[_Argument], list[_Argument]]:
    return [_argument(a) for a in schema.arguments], [_argument(r) for r in schema.returns]


def _argument(argument: Any) -> _Argument:
    alias = argument.alias_info
    return _Argument(
        name=argument.name,
        type=str(argument.type),
        default=repr(argument.default_value) if argument.has_default_value() else "",
        kwarg_only=bool(argument.kwarg_only),
        written=alias is not None and bool(alias.is_write),
    )


def _where(function: Callable[..., Any]) -> str:
    """`module.name (file:line)` of a function, as far as they are known."""
    inner = inspect.unwrap(function)
    name = f"{getattr(inner, '__module__', '?')}.{getattr(inner, '__qualname__', repr(inner))}"
    code = getattr(inner, "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"
