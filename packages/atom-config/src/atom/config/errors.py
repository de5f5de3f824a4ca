"""What this package raises.

ValueError
└── ConfigError          a setting, a JSON document or an environment variable that cannot be used
"""

from __future__ import annotations

LONGEST_VALUE = 160


class ConfigError(ValueError):
    """A setting that cannot be used: names the field, the value it was given and what is allowed.

    Attributes:
        field: where the value was given, for example `CompilationConfig.level`.
        value: the value as it was given.
        allowed: what would have been accepted, in words.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        super().__init__(f"{field} = {shortened(value)} is not allowed; allowed: {allowed}")

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        # The default would rebuild from the one-line message, which the constructor does not take.
        return type(self), (self.field, self.value, self.allowed)


def shortened(value: object) -> str:
    """`repr(value)` on one line, cut in the middle where it is long."""
    text = " ".join(repr(value).split())
    if len(text) <= LONGEST_VALUE:
        return text
    half = LONGEST_VALUE // 2 - 2
    return f"{text[:half]} … {text[-half:]}"
