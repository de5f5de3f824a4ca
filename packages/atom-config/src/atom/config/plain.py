"""Values in their JSON form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum, IntEnum
from pathlib import PurePath

from atom.config.errors import ConfigError


def plain(field: str, value: object) -> object:
    """`value` as JSON values: enums by name (levels by number), tuples as lists, paths as text.

    Raises:
        ConfigError: there is no such form that means the same in every process; names `field`.
    """
    if isinstance(value, IntEnum):
        return int(value)
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [plain(field, entry) for entry in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain(f"{field}[{key!r}]", entry) for key, entry in value.items()}
    raise ConfigError(
        field, value, "values that JSON can hold: they are written to files and enter cache keys"
    )
