"""Metadata of one GGUF architecture, each value checked for its kind when it is asked for."""

from __future__ import annotations

import array
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from atom.models.checkpoint.names import shown
from atom.models.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from atom.models.checkpoint.gguf_header import GGUFHeader


class GGUFFields:
    """The metadata under the architecture's own prefix (`llama.` for a Llama)."""

    def __init__(self, header: GGUFHeader) -> None:
        self.path = header.path
        self._metadata = header.metadata
        self._prefix = f"{header.metadata['general.architecture']}."

    def key(self, name: str) -> str:
        """The whole metadata key, for messages."""
        return self._prefix + name

    def get(self, name: str, default: Any = None) -> Any:
        """The value as stored, or `default`."""
        return self._metadata.get(self._prefix + name, default)

    def count(self, name: str, *, default: int | None = None) -> int:
        """A whole number of at least 1; `default` stands in for an absent one, and may itself be 0.

        Raises:
            CorruptCheckpointError: absent without a default, not a number, or differing between layers.
        """
        value = self._present(name, default)
        # One value a layer is allowed; the models here need it to be the same for all.
        if isinstance(value, array.array) and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or value < (0 if default == 0 else 1):
            raise self._fault(name, value, "a positive whole number, the same for all layers")
        return value

    def number(self, name: str, *, default: float | None = None) -> float:
        """A positive, finite number, as somebody wrote it before it became a float32.

        Raises:
            CorruptCheckpointError: absent without a default, or no such number.
        """
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._fault(name, value, "a number")
        if value <= 0 or not math.isfinite(value):
            raise self._fault(name, value, "a positive number")
        return shortest(value)

    def _present(self, name: str, default: Any) -> Any:
        value = self.get(name, default)
        if value is None:
            raise CorruptCheckpointError(f"{self.path}: metadata key {self.key(name)} is missing")
        return value

    def _fault(self, name: str, value: object, expected: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self.path}: {self.key(name)} is {shown(value)}, expected {expected}")


def shortest(value: float) -> float:
    """The decimal number that a float32 was made from: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
