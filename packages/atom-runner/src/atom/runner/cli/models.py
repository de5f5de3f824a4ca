"""`atom-runner models`: what the installed model packages can run."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated, Any

import typer

from atom.runner.cli.console import say, write, write_json
from atom.runner.cli.help_text import examples
from atom.runner.loader import ENTRY_POINT_GROUP, installed_providers

MODELS_EXAMPLES = examples("atom-runner models", "atom-runner models --json")


def models(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object for each architecture, a line each.")
    ] = False,
) -> int:
    """List the architectures that can run: what of each is recorded, where recordings break, whose it is.

    A package adds models through the entry-point group `atom.models`.
    """
    rows = [row for provider in installed_providers() for row in _rows(provider)]
    if as_json:
        for row in rows:
            write_json(row)
        return 0
    table = [("architecture", "package", "recording unit", "regions")]
    table += [
        (
            row["architecture"],
            f"{row['package']} {row['version'] or ''}".rstrip(),
            row["recording_unit"] or "unknown",
            ", ".join(row["regions"] or ()) or "none",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        write("  ".join(cells).rstrip() + "\n")
    return 0


def _rows(provider: Any) -> list[dict[str, Any]]:
    return [
        {
            "architecture": architecture,
            "package": provider.name,
            "version": _version(provider.name),
            **_description(provider, architecture),
        }
        for architecture in sorted(provider.architectures)
    ]


def _description(provider: Any, architecture: str) -> dict[str, Any]:
    """What the provider tells beyond names, if it does; a model that cannot be imported is said to be one."""
    known: dict[str, Any] = {"recording_unit": None, "regions": None}
    if not hasattr(provider, "describe"):
        return known
    try:
        told = provider.describe(architecture)
    except Exception as error:  # someone else's class: the list is still worth having
        say(f"{provider.name}: {architecture} cannot be loaded: {type(error).__name__}: {error}")
        return known
    return {key: told.get(key) for key in known}


def _version(provider_name: str) -> str | None:
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        if provider_name in (entry.name, entry.dist.name if entry.dist else None) and entry.dist is not None:
            return entry.dist.version
    return None
