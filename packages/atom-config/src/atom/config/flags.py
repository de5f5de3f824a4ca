"""Settings listed for a command line: one flag a field, derived from the configuration classes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atom.config.engine import Config
from atom.config.errors import ConfigError
from atom.config.kinds import Kind, Switch
from atom.config.setting import about_field, default_of
from atom.config.settings import Nested, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class Setting:
    """One field that somebody can set.

    Attributes:
        path: where it lies below the class that was listed, for example "compilation_config.level".
        owner: the class that declares it.
        name: its field name.
        type: its type as written in the source.
        default: its default; `dataclasses.MISSING` for a required field.
        help: what it does, one or two sentences.
        flag: its flag on a command line, for example "--level"; "" where it has none.
        kind: which values pass; `kind.allowed` says so in words.
        in_key: whether it is part of compile-cache keys.
        computed: whether it is computed from others and cannot be given.
    """

    path: str
    owner: type[Settings]
    name: str
    type: str
    default: Any
    help: str
    flag: str
    kind: Kind
    in_key: bool
    computed: bool

    @property
    def is_switch(self) -> bool:
        """Whether a command line gives it without a value, `--x` and `--no-x`."""
        return isinstance(self.kind, Switch)

    def parse(self, text: str) -> Any:
        """The value that `text` means: numbers, names in any case, comma-separated lists, JSON objects.

        Raises:
            ConfigError: it means none; names the flag (or the path of a field without one).
        """
        return self.kind.parse(self.flag or self.path, text)


def settings_of(cls: type[Settings] = Config) -> list[Setting]:
    """All settings of a configuration class and of the classes nested in it, in the order of the source."""
    return list(_walk(cls, ""))


def from_settings(values: Mapping[str, Any]) -> Config:
    """A `Config` from values by `Setting.path`; classes nothing was given for stay at their defaults.

    Raises:
        ConfigError: a path is unknown, or a value is not allowed.
    """
    known = {setting.path for setting in settings_of()}
    own: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        if path not in known:
            raise ConfigError("setting", path, "one of " + ", ".join(sorted(known)))
        holder, _, name = path.rpartition(".")
        (nested.setdefault(holder, {}) if holder else own)[name] = value
    classes = {field.name: _nested_class(field) for field in dataclasses.fields(Config)}
    for holder, given in nested.items():
        cls = classes[holder]
        assert cls is not None, holder
        own[holder] = cls(**given)
    if "model" not in own:
        raise ConfigError("Config.model", None, "the path of a checkpoint")
    return Config(**own)


def _walk(cls: type[Settings], prefix: str) -> Iterator[Setting]:
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        described = about_field(field)
        nested = _nested_class(field)
        if nested is not None:
            yield from _walk(nested, f"{prefix}{field.name}.")
        elif described is not None:
            derived_flag = "--" + field.name.replace("_", "-")
            yield Setting(
                path=prefix + field.name,
                owner=cls,
                name=field.name,
                type=str(field.type),
                default=default_of(field),
                help=described.help,
                flag=(derived_flag if described.flag is None else described.flag) if field.init else "",
                kind=described.kind,
                in_key=described.in_key,
                computed=not field.init,
            )


def _nested_class(field: dataclasses.Field[Any]) -> type[Settings] | None:
    described = about_field(field)
    return described.kind.of if described is not None and isinstance(described.kind, Nested) else None
