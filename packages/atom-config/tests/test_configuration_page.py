from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from atom.config import ConfigError
from atom.config.reference import CLASSES, main, with_tables
from atom.config.setting import about_field
from atom.config.settings import Nested

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"

needs_page = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not part of a source archive")


def kind_of(field: dataclasses.Field[Any]) -> object:
    described = about_field(field)
    assert described is not None
    return described.kind


@needs_page
def test_the_tables_are_what_the_classes_say() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page, "run: python -m atom.config.reference docs/configuration.md"


@needs_page
@pytest.mark.parametrize("cls", CLASSES)
def test_the_page_names_every_field_with_its_default(cls: type[Any]) -> None:
    section = re.search(
        rf"<!-- fields of {cls.__name__} -->\n(.*?)<!-- end of fields -->",
        PAGE.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert section is not None
    rows = {found[1]: found[0] for found in re.finditer(r"^\| `(\w+)`.*$", section[1], re.MULTILINE)}
    shown = [field for field in dataclasses.fields(cls) if not isinstance(kind_of(field), Nested)]
    assert list(rows) == [field.name for field in shown]
    for field in shown:
        if isinstance(field.default, (bool, str)) or type(field.default) in (int, float):
            assert f"| `{field.default!r}` |" in rows[field.name]


def test_a_stale_table_is_rewritten_in_place(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- fields of KVCacheConfig -->\n| stale row |\n<!-- end of fields -->\nafter\n"
    )
    main([str(page)])
    written = page.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "stale row" not in written
    assert "| `block_size`<br>`--block-size` | <code>int</code> | `16` |" in written


def test_a_marker_for_an_unknown_class_is_refused() -> None:
    with pytest.raises(ConfigError, match="KVCacheConfig"):
        with_tables("<!-- fields of Nothing -->\n<!-- end of fields -->")
