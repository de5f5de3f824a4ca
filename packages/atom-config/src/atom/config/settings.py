"""The base of every configuration class: checks, which fields were set, JSON, a hash for cache keys."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Self

from atom.config.errors import ConfigError
from atom.config.hashing import stable_hash
from atom.config.kinds import Kind
from atom.config.plain import plain
from atom.config.setting import about_field, default_of


class Settings:
    """Base of the configuration dataclasses.

    An instance knows which fields were set: named in the constructor, or different from their default.
    Only those are written to JSON, so a document stays as short as what its author wrote, and a default
    that changes later applies to it.
    """

    _named: frozenset[str]

    def __new__(cls, *args: object, **named: object) -> Self:
        self = super().__new__(cls)
        positional = [field.name for field in dataclasses.fields(cls) if field.init][: len(args)]  # type: ignore[arg-type]
        object.__setattr__(self, "_named", frozenset((*positional, *named)))
        return self

    def __post_init__(self) -> None:
        for field in _fields(self):
            if field.init:
                value = self.checked(field.name, getattr(self, field.name))
                object.__setattr__(self, field.name, value)

    @classmethod
    def checked(cls, name: str, value: object) -> Any:
        """`value` as the field `name` stores it.

        Raises:
            ConfigError: the field does not take it; names field, value and what is allowed.
        """
        described = about_field(cls._field(name))
        return value if described is None else described.kind.check(f"{cls.__name__}.{name}", value)

    @property
    def fields_set(self) -> frozenset[str]:
        """Names of the fields that were set, rather than left at their default or computed."""
        return frozenset(
            field.name
            for field in _fields(self)
            if field.init and (field.name in self._named or self._differs(field))
        )

    def given(self) -> dict[str, Any]:
        """The set fields as they were given, in the order of the class; computed values do not show."""
        chosen = self.fields_set
        return {
            field.name: copy.deepcopy(self._given(field.name))
            for field in _fields(self)
            if field.name in chosen
        }

    def replace(self, **changes: Any) -> Self:
        """A new instance from the set fields with `changes`; everything computed is computed again.

        Unlike `dataclasses.replace` it does not turn defaults and computed values into set ones.
        """
        for name in changes:
            self._field(name)
        return type(self)(**{**self.given(), **changes})

    def to_dict(self) -> dict[str, Any]:
        """The set fields as JSON values.

        Raises:
            ConfigError: a value has no JSON form.
        """
        return {
            name: value.to_dict() if isinstance(value, Settings) else plain(self._label(name), value)
            for name, value in self.given().items()
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """The set fields as a JSON object; `from_json` gives an equal configuration back."""
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """The configuration that `to_dict` wrote, or that somebody wrote by hand.

        Raises:
            ConfigError: an unknown field, a missing one, or a value that its field does not take.
        """
        if not isinstance(document, Mapping):
            raise ConfigError(cls.__name__, document, "a JSON object of fields")
        values = {name: cls._from_plain(name, value) for name, value in document.items()}
        for field in _fields(cls):
            if field.init and default_of(field) is MISSING and field.name not in values:
                raise ConfigError(f"{cls.__name__}.{field.name}", None, "a value: the field has no default")
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The configuration in a JSON text.

        Raises:
            ConfigError: no JSON object, a field given twice, and everything `from_dict` refuses.
        """
        try:
            document = json.loads(text, object_pairs_hook=_object_without_repeats)
        except json.JSONDecodeError as error:
            raise ConfigError(cls.__name__, text, f"a JSON object of fields ({error})") from None
        return cls.from_dict(document)

    def key_material(self) -> dict[str, Any]:
        """Every value that may change compiled code, by field name, as JSON values.

        That is each field, computed ones included, except those declared with `outside_key`.

        Raises:
            ConfigError: a value has no stable form, a function among Inductor options for example.
        """
        material: dict[str, Any] = {}
        for field in _fields(self):
            described = about_field(field)
            if described is None or described.in_key:
                value = getattr(self, field.name)
                material[field.name] = (
                    value.key_material()
                    if isinstance(value, Settings)
                    else plain(self._label(field.name), value)
                )
        return material

    def compute_hash(self) -> str:
        """A hex digest that is equal in every process and Python version for equal `key_material()`."""
        return stable_hash({type(self).__name__: self.key_material()})

    def _given(self, name: str) -> Any:
        return getattr(self, name)

    def _differs(self, field: dataclasses.Field[Any]) -> bool:
        value = self._given(field.name)
        return bool(value.fields_set) if isinstance(value, Settings) else value != default_of(field)

    @classmethod
    def _label(cls, name: str) -> str:
        return f"{cls.__name__}.{name}"

    @classmethod
    def _field(cls, name: str) -> dataclasses.Field[Any]:
        by_name = {field.name: field for field in _fields(cls) if field.init}
        if name not in by_name:
            close = difflib.get_close_matches(name, by_name, n=1)
            hint = f"{close[0]}? or one of " if close else "one of "
            raise ConfigError(cls.__name__, name, f"field names: {hint}{', '.join(by_name)}")
        return by_name[name]

    @classmethod
    def _from_plain(cls, name: str, value: object) -> object:
        described = about_field(cls._field(name))
        if described is not None and isinstance(described.kind, Nested) and isinstance(value, Mapping):
            return described.kind.of.from_dict(value)
        return value


@dataclass(frozen=True)
class Nested(Kind):
    """A field that holds a whole configuration class."""

    of: type[Settings] = Settings

    def _check(self, field: str, value: object) -> Settings:
        if not isinstance(value, self.of):
            raise self.refuse(field, value)
        return value

    def _allowed(self) -> str:
        return f"a {self.of.__name__}"


class Derivable(Settings):
    """Settings whose unset fields can be computed, and whose fields can be assigned later.

    An assignment is checked like a constructor's argument and counts as setting the field.
    """

    _computed: Mapping[str, tuple[Any, Any]]
    """By field: what was given before, and a copy of the value computed since. Replaced, never changed, so
    that a shallow copy of the instance goes its own way."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_computed", {})

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, self.checked(name, value))
        if "_computed" in self.__dict__:  # not while the constructor runs
            object.__setattr__(self, "_named", self._named | {name})
            others = {field: values for field, values in self._computed.items() if field != name}
            object.__setattr__(self, "_computed", others)

    def _derive(self, name: str, value: object) -> None:
        """Gives a field its effective value; what was given before stays what JSON writes."""
        given = self._given(name)
        object.__setattr__(self, name, value)
        # A copy, so that a caller's change inside the list shows as one.
        object.__setattr__(self, "_computed", {**self._computed, name: (given, copy.deepcopy(value))})

    def _given(self, name: str) -> Any:
        current = getattr(self, name)
        given, computed = self._computed.get(name, (current, current))
        return given if current == computed else current


def _fields(settings: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(settings)


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ConfigError("JSON object", repeated, "each field given once")
    return dict(pairs)
