"""Kinds of settings: which values a field takes, and what a command line's text means for it.

`check` refuses or normalises a Python value, `parse` reads text (a flag's value), and `allowed` says in
words what passes. With `optional`, None passes too, written `none` on a command line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atom.config.capture_sizes import (
    COMPILE_SIZES_IN_WORDS,
    SIZES_IN_WORDS,
    checked_compile_sizes,
    checked_sizes,
)
from atom.config.cudagraph_mode import MODES_IN_WORDS, CUDAGraphMode
from atom.config.errors import ConfigError
from atom.config.level import LEVELS_IN_WORDS, CompilationLevel
from atom.config.whole import whole_number


@dataclass(frozen=True)
class Kind:
    """Base of all kinds; alone it is text that must not be empty."""

    optional: bool = False

    def check(self, field: str, value: object) -> Any:
        """The value to store. Raises ConfigError naming `field` where it is not of this kind."""
        if value is None and self.optional:
            return None
        return self._check(field, value)

    def parse(self, field: str, text: str) -> Any:
        """The value that a command line's `text` means, checked."""
        if self.optional and text.strip().lower() == "none":
            return None
        return self.check(field, self._parse(text))

    @property
    def allowed(self) -> str:
        """What passes, in words."""
        return f"{self._allowed()}, or none" if self.optional else self._allowed()

    def refuse(self, field: str, value: object) -> ConfigError:
        return ConfigError(field, value, self.allowed)

    def _check(self, field: str, value: object) -> Any:
        if not isinstance(value, str) or not value.strip():
            raise self.refuse(field, value)
        return value

    def _parse(self, text: str) -> object:
        return text

    def _allowed(self) -> str:
        return "text that is not empty"


@dataclass(frozen=True)
class Text(Kind):
    """Text of any length, for a path or a name; may be empty."""

    def _check(self, field: str, value: object) -> str:
        if not isinstance(value, str) or "\0" in value:
            raise self.refuse(field, value)
        return value

    def _allowed(self) -> str:
        return "text"


@dataclass(frozen=True)
class Word(Kind):
    """One of a few words; any case is accepted, the listed spelling is stored."""

    words: tuple[str, ...] = ()

    def _check(self, field: str, value: object) -> str:
        if isinstance(value, str) and value.strip().lower() in self.words:
            return value.strip().lower()
        raise self.refuse(field, value)

    def _allowed(self) -> str:
        return ", ".join(self.words)


@dataclass(frozen=True)
class Switch(Kind):
    """True or False; numbers are not accepted for them."""

    def _check(self, field: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise self.refuse(field, value)
        return value

    def _parse(self, text: str) -> object:
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(
            text.strip().lower(), text
        )

    def _allowed(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class Integer(Kind):
    """A whole number within bounds, both included."""

    at_least: int | None = 1
    at_most: int | None = None

    def _check(self, field: str, value: object) -> int:
        number = whole_number(value)
        if number is None or (self.at_least is not None and number < self.at_least):
            raise self.refuse(field, value)
        if self.at_most is not None and number > self.at_most:
            raise self.refuse(field, value)
        return number

    def _parse(self, text: str) -> object:
        return _number_or_text(text, int)

    def _allowed(self) -> str:
        if self.at_least is None:
            return "a whole number"
        if self.at_most is None:
            return f"a whole number of at least {self.at_least}"
        return f"a whole number from {self.at_least} to {self.at_most}"


@dataclass(frozen=True)
class Number(Kind):
    """A finite number above one bound and not above the other."""

    above: float = 0.0
    at_most: float = math.inf

    def _check(self, field: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refuse(field, value)
        if not math.isfinite(value) or not self.above < value <= self.at_most:
            raise self.refuse(field, value)
        return float(value)

    def _parse(self, text: str) -> object:
        return _number_or_text(text, float)

    def _allowed(self) -> str:
        upper = "" if self.at_most == math.inf else f" and at most {self.at_most:g}"
        return f"a number above {self.above:g}{upper}"


@dataclass(frozen=True)
class TextList(Kind):
    """A list of texts, each given once; comma-separated on a command line."""

    def _check(self, field: str, value: object) -> list[str]:
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            raise self.refuse(field, value)
        entries = [entry for entry in value if isinstance(entry, str) and entry.strip()]
        if len(entries) != len(value) or len(set(entries)) != len(entries):
            raise self.refuse(field, value)
        return entries

    def _parse(self, text: str) -> object:
        return _split(text)

    def _allowed(self) -> str:
        return "a list of texts that are not empty, each given once"


@dataclass(frozen=True)
class Options(Kind):
    """A mapping from option names to JSON values; a JSON object on a command line."""

    def _check(self, field: str, value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) and key for key in value):
            raise self.refuse(field, value)
        return dict(value)

    def _parse(self, text: str) -> object:
        try:
            return json.loads(text)
        except ValueError:
            return text

    def _allowed(self) -> str:
        return 'a mapping from option names to values, as JSON: {"max_autotune": true}'


@dataclass(frozen=True)
class Level(Kind):
    """A compilation level, by number or name."""

    def _check(self, field: str, value: object) -> CompilationLevel:
        return CompilationLevel.parse(value, field=field)

    def _allowed(self) -> str:
        return LEVELS_IN_WORDS


@dataclass(frozen=True)
class Mode(Kind):
    """A graph mode, by member, value or name. Text "none" is the mode NONE; None is for leaving it out."""

    def parse(self, field: str, text: str) -> CUDAGraphMode:
        return CUDAGraphMode.parse(text, field=field)

    @property
    def allowed(self) -> str:
        return self._allowed()

    def _check(self, field: str, value: object) -> CUDAGraphMode:
        return CUDAGraphMode.parse(value, field=field)

    def _allowed(self) -> str:
        return MODES_IN_WORDS


@dataclass(frozen=True)
class Sizes(Kind):
    """Bucket sizes, stored ascending; comma-separated on a command line."""

    def _check(self, field: str, value: object) -> list[int]:
        return checked_sizes(field, value)

    def _parse(self, text: str) -> object:
        return _numbers_or_texts(text)

    def _allowed(self) -> str:
        return SIZES_IN_WORDS


@dataclass(frozen=True)
class CompileSizes(Kind):
    """Rows to compile for, and the word that stands for the capture ladder; comma-separated."""

    def _check(self, field: str, value: object) -> list[int | str]:
        return checked_compile_sizes(field, value)

    def _parse(self, text: str) -> object:
        return _numbers_or_texts(text)

    def _allowed(self) -> str:
        return COMPILE_SIZES_IN_WORDS


def _split(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",")] if text.strip() else []


def _numbers_or_texts(text: str) -> list[object]:
    return [_number_or_text(entry, int) for entry in _split(text)]


def _number_or_text(text: str, number: type[int | float]) -> object:
    try:
        return number(text)
    except ValueError:
        return text  # the check that follows refuses it, naming field, value and what is allowed
