"""Linear layers: plain, and several projections of one input as one matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from atom.models.layers.errors import LayerArgumentError
from atom.models.layers.packing import pack_product
from atom.models.layers.prepacked import is_traced, packed_linear

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atom.models.layers.packing import WeightForm
    from atom.models.layers.prepacked import PackedProduct


class Linear(nn.Module):
    """`x @ weight.T + bias`, weight `[out_features, in_features]`.

    After loading, `pack` may put the weight into the form its device multiplies fastest; the dense one is
    then gone.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight: nn.Parameter | None = nn.Parameter(
            torch.empty(out_features, in_features, dtype=dtype, device=device), requires_grad=False
        )
        self.bias: nn.Parameter | None = (
            nn.Parameter(torch.empty(out_features, dtype=dtype, device=device), requires_grad=False)
            if bias
            else None
        )
        self._packed: PackedProduct | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, out_features]` of `[rows, in_features]`."""
        packed = self._packed
        if packed is None:
            assert self.weight is not None
            return F.linear(x, self.weight, self.bias)
        if is_traced():
            return packed_linear(x, packed.token, self.out_features)
        return packed(x)

    def pack(self, form: WeightForm = "exact") -> None:
        """Keep the weight in the fastest form there is for its dtype and device, the dense one where none is.

        Packing again changes nothing.
        """
        if self._packed is not None or self.weight is None:
            return
        self._packed = pack_product(self.weight, self.bias, form)
        if self._packed is not None:
            self.weight = None

    def extra_repr(self) -> str:
        how = "dense" if self._packed is None else self._packed.name
        return f"in_features={self.in_features}, out_features={self.out_features}, {how}"


class FusedLinear(Linear):
    """Projections of one input stacked into one matrix: one product is started, the input is read once."""

    def __init__(
        self,
        in_features: int,
        parts: Mapping[str, int],
        *,
        bias: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        """`parts`: name -> output features, in the order they lie in a row of the result."""
        super().__init__(in_features, sum(parts.values()), bias=bias, dtype=dtype, device=device)
        self.parts = dict(parts)

    def part(self, name: str, of: str = "weight") -> torch.Tensor:
        """The rows of one projection, a view to load into; `of` is "weight" or "bias".

        Raises:
            LayerArgumentError: no such projection, or the layer has no such parameter (any more).
        """
        whole: torch.Tensor | None = getattr(self, of)
        if name not in self.parts or whole is None:
            raise LayerArgumentError(f"no {of} of projection {name!r} in a layer of {', '.join(self.parts)}")
        begin = 0
        for other, rows in self.parts.items():
            if other == name:
                break
            begin += rows
        return whole.narrow(0, begin, self.parts[name])


class QKVLinear(FusedLinear):
    """Query, key and value projections; a row of the result is heads of `head_dim`: query, key, value."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        bias: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        kv_size = num_kv_heads * head_dim
        parts = {"q": num_heads * head_dim, "k": kv_size, "v": kv_size}
        super().__init__(hidden_size, parts, bias=bias, dtype=dtype, device=device)


class GateUpLinear(FusedLinear):
    """Gate and up projections of a gated MLP; a row of the result is the gate's half, then the up half."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        bias: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        parts = {"gate": intermediate_size, "up": intermediate_size}
        super().__init__(hidden_size, parts, bias=bias, dtype=dtype, device=device)
