"""`--help` in plain text: flags whole, in groups, however narrow the terminal."""

from __future__ import annotations

from typing import Any

import typer.core


class Verb(typer.core.TyperCommand):
    """A verb whose flags are listed in groups, by the `rich_help_panel` each names."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section a group: the verb's own flags first, then those derived from settings."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                group = getattr(parameter, "rich_help_panel", None) or "Options"
                groups.setdefault(group, []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)


def examples(*lines: str) -> str:
    """An epilogue whose lines stay as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
