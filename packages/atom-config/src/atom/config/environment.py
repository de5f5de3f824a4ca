"""The one reader of environment variables.

Settings are fields, never variables; what is read here is only what a launcher such as `torchrun` tells a
process about its place among the others.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom.config.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Environment:
    """What a launcher told this process; the defaults are those of a process on its own."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 29500


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """The launcher's variables: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT.

    Args:
        variables: read instead of the process's own environment.

    Raises:
        ConfigError: a variable is malformed, or a rank is not below its world's size; names the variable.
    """
    values = os.environ if variables is None else variables
    alone = Environment()
    world_size = _whole(values, "WORLD_SIZE", alone.world_size, 1, None)
    local_world_size = _whole(values, "LOCAL_WORLD_SIZE", alone.local_world_size, 1, world_size)
    address = values.get("MASTER_ADDR", alone.master_addr)
    if not address.strip():
        raise ConfigError("environment variable MASTER_ADDR", address, "a host name or address")
    return Environment(
        rank=_whole(values, "RANK", alone.rank, 0, world_size - 1),
        local_rank=_whole(values, "LOCAL_RANK", alone.local_rank, 0, world_size - 1),
        world_size=world_size,
        local_world_size=local_world_size,
        master_addr=address,
        master_port=_whole(values, "MASTER_PORT", alone.master_port, 1, 65535),
    )


def _whole(values: Mapping[str, str], name: str, default: int, at_least: int, at_most: int | None) -> int:
    text = values.get(name)
    if text is None:
        return default
    upper = "" if at_most is None else f" and at most {at_most}"
    allowed = f"a whole number of at least {at_least}{upper}"
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdecimal()):
        raise ConfigError(f"environment variable {name}", text, allowed)
    number = int(stripped)
    if number < at_least or (at_most is not None and number > at_most):
        raise ConfigError(f"environment variable {name}", text, allowed)
    return number
