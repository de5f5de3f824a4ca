"""A text that two subgraphs share exactly when one compiled artifact serves both.

Names are replaced by positions and symbols by the order in which the inputs mention them, so equal layers
of a model give equal texts. Everything a compiler reads is in the text: operations with their schemas,
arguments, constants by content, and dtype, shape, stride and device of every value, as well as which inputs
share storage.
"""

from __future__ import annotations

import hashlib
import inspect
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils._sympy.numbers import int_oo

from atom.compile.size_guards import encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import sympy  # type: ignore[import-untyped]

__all__ = ["CanonicalGraph", "UncacheableError", "canonicalize", "remember_bounds", "traced_values"]

# By shape environment: the bounds of its symbols as tracing left them.
_bounds: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()

_KERNEL_WRAPPERS = ("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional")


class UncacheableError(ValueError):
    """The graph holds something that cannot be told from another of its kind in a later process."""


@dataclass(frozen=True)
class CanonicalGraph:
    """A subgraph as `canonicalize` describes it."""

    text: str
    symbols: tuple[sympy.Symbol, ...]
    """The free symbols of the inputs, in order of appearance; `s<i>` in the text."""
    hints: tuple[int, ...]
    """The sizes the symbols had while tracing."""

    @property
    def names(self) -> dict[sympy.Symbol, str]:
        return {symbol: f"s{index}" for index, symbol in enumerate(self.symbols)}

    @property
    def sizes(self) -> dict[str, int]:
        """The traced sizes by canonical name."""
        return {f"s{index}": hint for index, hint in enumerate(self.hints)}


def canonicalize(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CanonicalGraph:
    """Describe `gm` as called with `example_inputs` (tensors, symbolic and plain integers).

    Raises:
        UncacheableError: an operation or argument has no description that holds in another process.
    """
    symbols = _Symbols()
    lines = _input_lines(example_inputs, symbols)
    lines += symbols.range_lines()
    lines += _graph_lines(gm, symbols)
    return CanonicalGraph("\n".join(lines), tuple(symbols.order), tuple(symbols.hints))


class _Symbols:
    """Free symbols in order of first appearance."""

    def __init__(self) -> None:
        self.order: list[sympy.Symbol] = []
        self.hints: list[int] = []
        self._names: dict[sympy.Symbol, str] = {}
        self._ranges: list[tuple[str, Any, Any]] = []

    def text_of(self, value: Any) -> str:
        """A size as text; `value` is an integer, plain or symbolic."""
        if isinstance(value, int):
            return str(int(value))
        node = value.node
        expression = node.expr
        for symbol in sorted(expression.free_symbols, key=str):
            if symbol not in self._names:
                self._add(symbol, node.shape_env)
        return repr(encode(expression, self._names))

    def _add(self, symbol: sympy.Symbol, shape_env: Any) -> None:
        name = f"s{len(self.order)}"
        self.order.append(symbol)
        self.hints.append(_hint(shape_env, symbol))
        self._names[symbol] = name
        bounds = _bounds.get(shape_env, {}).get(symbol) or shape_env.bound_sympy(symbol)
        self._ranges.append((name, bounds.lower, bounds.upper))

    def range_lines(self) -> list[str]:
        return [
            f"range {name} {lower} {'oo' if upper == int_oo else upper}"
            for name, lower, upper in self._ranges
        ]


def remember_bounds(shape_env: Any) -> None:
    """Describe graphs of this shape environment with the bounds that its symbols have now.

    Compiling a piece may narrow them (on a GPU, to sizes that 32-bit indices reach), loading it does not:
    pieces after it would have another text in a warm start than in a cold one.
    """
    if shape_env not in _bounds:
        _bounds[shape_env] = {symbol: shape_env.bound_sympy(symbol) for symbol in shape_env.var_to_range}


def traced_values(shape_env: Any) -> Mapping[sympy.Symbol, Any]:
    """The sizes that the symbols of a shape environment were traced with."""
    newer = hasattr(type(shape_env), "backed_var_to_val") or "backed_var_to_val" in vars(shape_env)
    values: Mapping[sympy.Symbol, Any] = shape_env.backed_var_to_val if newer else shape_env.var_to_val
    return values


def _hint(shape_env: Any, symbol: sympy.Symbol) -> int:
    values = traced_values(shape_env)
    if symbol not in values:
        raise UncacheableError(f"the size {symbol} depends on data")
    return int(values[symbol])


def _input_lines(example_inputs: Sequence[Any], symbols: _Symbols) -> list[str]:
    storages: dict[Any, int] = {}
    lines = []
    for index, value in enumerate(example_inputs):
        if isinstance(value, torch.Tensor):
            storage = storages.setdefault(value.untyped_storage()._cdata, index)
            offset = symbols.text_of(value.storage_offset())
            kind = "param" if isinstance(value, torch.nn.Parameter) else "tensor"
            lines.append(
                f"input {index} {kind} {_tensor_text(value, symbols)} storage={storage} offset={offset} "
                f"grad={value.requires_grad} conj={value.is_conj()} neg={value.is_neg()}"
            )
        elif isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
            lines.append(f"input {index} int {symbols.text_of(value)}")
        else:
            raise UncacheableError(f"input {index} is a {type(value).__qualname__}")
    return lines


def _tensor_text(value: torch.Tensor, symbols: _Symbols) -> str:
    if value.layout is not torch.strided:
        return f"{value.dtype} {value.layout} {value.device}"
    shape = ",".join(symbols.text_of(size) for size in value.shape)
    stride = ",".join(symbols.text_of(step) for step in value.stride())
    return f"{value.dtype}[{shape}]/[{stride}]@{value.device}"


def _graph_lines(gm: fx.GraphModule, symbols: _Symbols, prefix: str = "") -> list[str]:
    numbers: dict[fx.Node, str] = {}
    lines = []
    for index, node in enumerate(gm.graph.nodes):
        numbers[node] = f"{prefix}n{index}"
        if node.op == "placeholder":
            lines.append(f"{numbers[node]} = placeholder")
            continue
        if node.op == "get_attr":
            lines += _attribute_lines(gm, node, numbers[node], symbols)
            continue
        arguments = _argument_text(node.args, numbers, symbols)
        keywords = _argument_text(node.kwargs, numbers, symbols)
        value = _value_text(node.meta.get("example_value"), symbols)
        lines.append(f"{numbers[node]} = {_target_text(node)} {arguments} {keywords} -> {value}")
    return lines


def _attribute_lines(gm: fx.GraphModule, node: fx.Node, number: str, symbols: _Symbols) -> list[str]:
    value: Any = gm
    for part in str(node.target).split("."):
        value = getattr(value, part)
    if isinstance(value, fx.GraphModule):
        return [f"{number} = graph", *_graph_lines(value, symbols, f"{number}.")]
    if isinstance(value, torch.Tensor) and type(value) in (torch.Tensor, torch.nn.Parameter):
        content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        digest = hashlib.sha256(content).hexdigest()
        return [f"{number} = constant {_tensor_text(value, symbols)} {digest}"]
    raise UncacheableError(f"attribute {node.target} is a {type(value).__qualname__}")


def _value_text(value: Any, symbols: _Symbols) -> str:
    if isinstance(value, torch.Tensor):
        return _tensor_text(value, symbols)
    if isinstance(value, tuple | list):
        return f"({' '.join(_value_text(item, symbols) for item in value)})"
    if isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
        return symbols.text_of(value)
    return repr(value) if value is None or isinstance(value, bool | float | str) else type(value).__qualname__


def _argument_text(value: Any, numbers: dict[fx.Node, str], symbols: _Symbols) -> str:
    if isinstance(value, fx.Node):
        return numbers[value]
    if value is None or value is ... or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return str(value)
    if isinstance(value, torch.SymInt):
        return symbols.text_of(value)
    if isinstance(value, tuple | list):
        parts = ", ".join(_argument_text(item, numbers, symbols) for item in value)
        return f"({parts})" if isinstance(value, tuple) else f"[{parts}]"
    if isinstance(value, dict):
        parts = ", ".join(
            f"{key!r}: {_argument_text(value[key], numbers, symbols)}" for key in sorted(value, key=repr)
        )
        return f"{{{parts}}}"
    if isinstance(value, slice):
        return f"slice{_argument_text((value.start, value.stop, value.step), numbers, symbols)}"
    if isinstance(value, torch._ops.OpOverload):
        return f"{value} {value._schema}"
    raise UncacheableError(f"an argument is a {type(value).__qualname__}")


def _target_text(node: fx.Node) -> str:
    target: Any = node.target
    if node.op == "output" or isinstance(target, str):
        return f"{node.op} {target}"
    if isinstance(target, torch._ops.OpOverload):
        return f"{target} {target._schema} {sorted(str(tag) for tag in target.tags)}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        schemas = [str(getattr(target, name)._schema) for name in sorted(_overloads(target))]
        return f"{target} {schemas}"
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"{target.namespace}.{target._name}{_kernel_text(node)}"
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if name is None or "<" in name:
        raise UncacheableError(f"the function {target!r} has no name of its own")
    if module is not None and module.partition(".")[0] not in ("torch", "_operator", "builtins", "math"):
        return f"{module}.{name} {_source_digest(target)}"
    return f"{module}.{name}"


def _overloads(packet: Any) -> list[str]:
    return list(packet.overloads())


def _kernel_text(node: fx.Node) -> str:
    """For a Triton kernel called in the model's own code: its source and its constants."""
    target: Any = node.target
    if target._name not in _KERNEL_WRAPPERS:
        return ""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    kernel: Any = kernel_side_table.get_kernel(node.kwargs["kernel_idx"])  # type: ignore[arg-type]
    constants = kernel_side_table.get_constant_args(node.kwargs["constant_args_idx"])  # type: ignore[arg-type]
    while hasattr(kernel, "fn"):
        digest = getattr(kernel, "cache_key", None)
        if isinstance(digest, str):
            return f" {digest} {sorted(constants.items())!r}"
        kernel = kernel.fn
    raise UncacheableError(f"the kernel {kernel!r} has no digest of its source")


def _source_digest(function: Any) -> str:
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError) as error:
        raise UncacheableError(f"the source of {function!r} cannot be read") from error
