"""The tables of the configuration page, made from the classes.

`python -m atom.config.reference docs/configuration.md` rewrites the tables of that page in place; a test
compares them with the classes.
"""

from __future__ import annotations

import re
import sys
from dataclasses import MISSING
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from atom.config.compilation import CompilationConfig
from atom.config.engine import Config
from atom.config.errors import ConfigError
from atom.config.flags import Setting, settings_of
from atom.config.kv_cache import KVCacheConfig
from atom.config.model import ModelConfig
from atom.config.parallel import ParallelConfig
from atom.config.setting import about_field
from atom.config.speculative import SpeculativeConfig

if TYPE_CHECKING:
    from atom.config.settings import Settings

CLASSES: tuple[type[Settings], ...] = (
    Config,
    ModelConfig,
    KVCacheConfig,
    ParallelConfig,
    SpeculativeConfig,
    CompilationConfig,
)

TABLE = re.compile(r"<!-- fields of (\w+) -->\n.*?<!-- end of fields -->", re.DOTALL)


def table(cls: type[Settings]) -> str:
    """A Markdown table of one class's own fields, nested classes left out."""
    own = [setting for setting in settings_of(cls) if setting.owner is cls]
    lines = ["| Field and flag | Type | Default | What it does |", "|---|---|---|---|"]
    return "\n".join([*lines, *(_row(setting) for setting in own)])


def key_table() -> str:
    """A Markdown table of the fields outside compile-cache keys, with the reason of each."""
    lines = ["| Field | Why it cannot change compiled code |", "|---|---|"]
    for cls in CLASSES:
        for setting in settings_of(cls):
            field = cls.__dataclass_fields__[setting.name] if setting.owner is cls else None  # type: ignore[attr-defined]
            described = about_field(field) if field is not None else None
            if described is not None and described.key is not None and not described.in_key:
                lines.append(f"| `{cls.__name__}.{setting.name}` | {described.key.reason} |")
    return "\n".join(lines)


def with_tables(page: str) -> str:
    """`page` with each marked table made anew.

    Raises:
        ConfigError: a marker names no configuration class.
    """
    by_name = {cls.__name__: table(cls) for cls in CLASSES} | {"keys": key_table()}

    def made(found: re.Match[str]) -> str:
        name = found[1]
        if name not in by_name:
            raise ConfigError("table marker", name, ", ".join(by_name))
        return f"<!-- fields of {name} -->\n{by_name[name]}\n<!-- end of fields -->"

    return TABLE.sub(made, page)


def _row(setting: Setting) -> str:
    flag = f"<br>`{setting.flag}`" if setting.flag else ""
    cells = [
        f"`{setting.name}`{flag}",
        # Renderers differ on whether a bar inside backticks ends a cell.
        f"<code>{setting.type.replace('|', '&#124;')}</code>",
        _default(setting),
        _escaped(setting.help) + _note(setting),
    ]
    return f"| {' | '.join(cells)} |"


def _note(setting: Setting) -> str:
    """What passes, where type and default do not say it already."""
    if setting.computed:
        return " Computed."
    return "" if setting.is_switch else f"<br>*Allowed:* {_escaped(setting.kind.allowed)}."


def _default(setting: Setting) -> str:
    if setting.default is MISSING:
        return "required"
    shown = setting.default.value if isinstance(setting.default, Enum) else setting.default
    return f"`{shown!r}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main(arguments: list[str]) -> None:
    """Rewrites the tables of each page named on the command line."""
    for name in arguments:
        page = Path(name)
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
