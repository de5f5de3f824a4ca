"""Weights kept in the form their device multiplies fastest, and the op that hides them from tracing."""

from __future__ import annotations

import itertools
import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

from atom.compile import direct_register_custom_op
from atom.graphs import bind_replays

if TYPE_CHECKING:
    from collections.abc import Callable

_numbers = itertools.count()
_products: weakref.WeakValueDictionary[int, PackedProduct] = weakref.WeakValueDictionary()


class PackedProduct(ABC):
    """`[rows, in] -> [rows, out]` with a weight in a layout of its own.

    Such a weight is no tensor that a graph could hold, so a trace sees `aiter.packed_linear` and the
    product's `token`, a tensor of one number. The number itself would not do: equal layers must stay equal
    pieces for a compiler, and a cached artifact serve another process.
    """

    name = "packed"

    def __init__(self, out_features: int) -> None:
        self.out_features = out_features
        number = next(_numbers)
        self.token = torch.tensor(number)
        _products[number] = self

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, out]` of `[rows, in]`, new, in the dtype of `x`."""

    def bind(self, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None] | None:
        """A call that puts the product with `x` into `y`, any number of times; None if there is none."""
        return None


def is_traced() -> bool:
    """Whether the operations called now are being written down: by a compiler, or by a dispatch mode."""
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0


def packed_linear(x: torch.Tensor, token: torch.Tensor, out_features: int) -> torch.Tensor:
    """The product that `token` stands for, as an op."""
    result: torch.Tensor = torch.ops.aiter.packed_linear(x, token, out_features)
    return result


def _packed_linear(x: torch.Tensor, token: torch.Tensor, out_features: int) -> torch.Tensor:
    return _products[int(token)](x)


def _packed_linear_fake(x: torch.Tensor, token: torch.Tensor, out_features: int) -> torch.Tensor:
    return x.new_empty((x.shape[0], out_features))


direct_register_custom_op(
    "packed_linear", _packed_linear, mutates_args=[], fake_impl=_packed_linear_fake, dispatch_key="CPU"
)
bind_replays(
    torch.ops.aiter.packed_linear.default,
    lambda args, results: _products[int(args[1])].bind(args[0], results[0]),
)
