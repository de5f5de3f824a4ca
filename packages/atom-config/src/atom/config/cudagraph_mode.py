"""Which CUDA graphs decode and mixed steps replay."""

from __future__ import annotations

from enum import Enum
from typing import cast

from atom.config.errors import ConfigError


class CUDAGraphMode(Enum):
    """Graph modes of the guide.

    A plain mode serves every step alike. A tuple mode `(decode, mixed)` names one plain mode for decode
    steps and one for steps that hold prefill tokens; its value is the pair of their values.
    """

    NONE = 0
    """No recording, no replay."""
    TR_HYBRID = 1
    """Token graphs that break only at eager regions, request graphs where a bucket fixes every launch."""
    FULL = 2
    """The whole forward as one graph per request bucket."""
    FULL_DECODE_ONLY = (FULL, NONE)
    """FULL for decode, nothing for mixed steps."""
    FULL_AND_TR_HYBRID = (FULL, TR_HYBRID)
    """Recorded as TR_HYBRID: dispatch asks `uses_tr_hybrid()` before anything else."""

    def decode_mode(self) -> CUDAGraphMode:
        """The plain mode of decode steps: a tuple's first element, else the mode."""
        return CUDAGraphMode(cast("tuple[int, int]", self.value)[0]) if self.separate_routine() else self

    def mixed_mode(self) -> CUDAGraphMode:
        """The plain mode of steps that hold prefill tokens: a tuple's second element, else the mode."""
        return CUDAGraphMode(cast("tuple[int, int]", self.value)[1]) if self.separate_routine() else self

    def separate_routine(self) -> bool:
        """Whether decode and mixed steps are told apart, that is, whether this is a tuple mode."""
        return isinstance(self.value, tuple)

    def has_full_cudagraphs(self) -> bool:
        """Whether either part is FULL."""
        return CUDAGraphMode.FULL in self._parts()

    def uses_tr_hybrid(self) -> bool:
        """Whether either part is TR_HYBRID."""
        return CUDAGraphMode.TR_HYBRID in self._parts()

    def max_cudagraph_mode(self) -> CUDAGraphMode:
        """The part with the higher value."""
        return max(self._parts(), key=lambda part: cast("int", part.value))

    def _parts(self) -> tuple[CUDAGraphMode, CUDAGraphMode]:
        return self.decode_mode(), self.mixed_mode()

    @classmethod
    def parse(cls, value: object, *, field: str = "cudagraph_mode") -> CUDAGraphMode:
        """The mode meant by a member, its value (`1`, `(2, 0)`) or its name in any case (`"full"`).

        Raises:
            ConfigError: it means no mode; names `field`.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            name = value.strip().upper().replace("-", "_")
            if name in cls.__members__:
                return cls[name]
        elif isinstance(value, (list, tuple)) and all(type(part) is int for part in value):
            by_value = {member.value: member for member in cls}
            if tuple(value) in by_value:
                return by_value[tuple(value)]
        elif type(value) is int and value in (0, 1, 2):
            return cls(value)
        raise ConfigError(field, value, MODES_IN_WORDS)


MODES_IN_WORDS = ", ".join(mode.name for mode in CUDAGraphMode)
