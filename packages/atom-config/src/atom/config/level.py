"""How much of `torch.compile` a model gets."""

from __future__ import annotations

from enum import IntEnum

from atom.config.errors import ConfigError


class CompilationLevel(IntEnum):
    """Compilation levels of the guide; the higher, the more is compiled."""

    NO_COMPILATION = 0
    """Eager execution, no `torch.compile`."""
    DYNAMO_AS_IS = 1
    """`torch.compile(backend="eager", fullgraph=True)`: shows that the model can be traced."""
    DYNAMO_ONCE = 2
    """Traced once, compiled as one graph by Inductor."""
    PIECEWISE = 3
    """Split at the splitting ops, each piece compiled by Inductor; the production default."""

    @classmethod
    def parse(cls, value: object, *, field: str = "level") -> CompilationLevel:
        """The level meant by a number (`3`, `"3"`) or a name in any case (`"piecewise"`).

        Raises:
            ConfigError: it means no level; names `field`.
        """
        if isinstance(value, str):
            name = value.strip().upper().replace("-", "_")
            if name in cls.__members__:
                return cls[name]
            if name.isdecimal() and int(name) in cls._value2member_map_:
                return cls(int(name))
        elif isinstance(value, int) and not isinstance(value, bool) and value in cls._value2member_map_:
            return cls(value)
        raise ConfigError(field, value, LEVELS_IN_WORDS)


LEVELS_IN_WORDS = ", ".join(f"{level.value} ({level.name})" for level in CompilationLevel)
