"""Fields of a checkpoint's configuration, read with checks that say which one is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from atom.models.checkpoint.names import shown
from atom.models.errors import ModelConfigError


class ConfigFields:
    """Reads fields; one that is absent or null has its default."""

    def __init__(self, config: Mapping[str, Any], *, title: str, architecture: str) -> None:
        """`title` opens messages; `architecture` is who cannot do what `require` refuses."""
        self._config = config
        self._title = title
        self._architecture = architecture

    def size(self, key: str, default: int | None = None, *, at_least: int = 1) -> int:
        """A whole number, positive unless `at_least` allows less."""
        value = self.value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise self.fault(
                key, "a positive whole number" if at_least == 1 else f"a whole number from {at_least}"
            )
        return value

    def number(self, key: str, default: float) -> float:
        """A positive number."""
        value = self.value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.fault(key, "a positive number")
        return float(value)

    def switch(self, key: str) -> bool:
        value = self.value(key, False)
        if not isinstance(value, bool):
            raise self.fault(key, "true or false")
        return value

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        value = self.value(key, None)
        if value is not None and not isinstance(value, Mapping):
            raise self.fault(key, "an object or null")
        return value

    def sequence(self, key: str) -> list[Any] | None:
        value = self.value(key, None)
        if value is not None and not isinstance(value, list | tuple):
            raise self.fault(key, "a list or null")
        return None if value is None else list(value)

    def require(self, key: str, only: object) -> None:
        """This model does what one value of the field asks for, and nothing else."""
        if self.value(key, only) != only:
            raise self.fault(key, f"{only!r}, all that {self._architecture} does here")

    def fault(self, key: str, expected: str) -> ModelConfigError:
        """The error for a field, ready to be raised."""
        return ModelConfigError(
            f"{self._title} configuration: {key} is {shown(self._config.get(key))}, expected {expected}"
        )

    def value(self, key: str, default: Any) -> Any:
        """Whatever is there, unchecked."""
        value = self._config.get(key)
        return default if value is None else value
