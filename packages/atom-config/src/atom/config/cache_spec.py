"""What a layer asks of the cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from atom.config.errors import ConfigError
from atom.config.whole import whole_number

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
}


@dataclass(frozen=True)
class CacheSpec:
    """One cache tensor of one layer.

    A paged tensor grows with the sequence and is `[num_blocks, block_size // tokens_per_row, *row_shape]`;
    a slot tensor belongs to a sequence whatever its length and is `[num_slots, rows_per_slot, *row_shape]`.

    Attributes:
        layer_name: the layer's name, unique in the model.
        name: the tensor's name within the layer: "k", "v", "compressed", …
        kind: "paged" or "slot".
        row_shape: shape of one row; () for one number a row.
        dtype: torch's name of the number format, for example "bfloat16".
        tokens_per_row: source tokens that one row of a paged tensor stands for.
        rows_per_slot: rows a sequence owns in a slot tensor.
    """

    layer_name: str
    name: str
    kind: Literal["paged", "slot"]
    row_shape: tuple[int, ...]
    dtype: str
    tokens_per_row: int = 1
    rows_per_slot: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("paged", "slot"):
            raise ConfigError(self._label("kind"), self.kind, "paged, slot")
        if self.dtype not in ITEM_BYTES:
            raise ConfigError(self._label("dtype"), self.dtype, ", ".join(ITEM_BYTES))
        if any((whole_number(size) or 0) < 1 for size in self.row_shape):
            raise ConfigError(self._label("row_shape"), self.row_shape, "whole numbers of at least 1")
        if (whole_number(self.tokens_per_row) or 0) < 1:
            raise ConfigError(self._label("tokens_per_row"), self.tokens_per_row, "at least 1")
        if self.kind == "slot" and (whole_number(self.rows_per_slot) or 0) < 1:
            raise ConfigError(self._label("rows_per_slot"), self.rows_per_slot, "at least 1 for a slot cache")
        if self.kind == "paged" and self.rows_per_slot != 0:
            raise ConfigError(self._label("rows_per_slot"), self.rows_per_slot, "0 for a paged cache")

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.row_shape) * ITEM_BYTES[self.dtype]

    def rows_per_block(self, block_size: int) -> int:
        """Rows of a block of `block_size` tokens; 0 for a slot cache.

        Raises:
            ConfigError: `block_size` is not a multiple of `tokens_per_row`.
        """
        if self.kind == "slot":
            return 0
        if block_size < 1 or block_size % self.tokens_per_row:
            raise ConfigError(
                "KVCacheConfig.block_size",
                block_size,
                f"a multiple of {self.tokens_per_row}, the tokens of a row of {self.layer_name}.{self.name}",
            )
        return block_size // self.tokens_per_row

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes that one block of `block_size` tokens takes here; 0 for a slot cache."""
        return self.rows_per_block(block_size) * self.row_bytes

    def bytes_per_slot(self) -> int:
        """Bytes that one sequence takes here whatever its length; 0 for a paged cache."""
        return self.rows_per_slot * self.row_bytes

    def _label(self, name: str) -> str:
        return f"CacheSpec({self.layer_name}.{self.name}).{name}"
