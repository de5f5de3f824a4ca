"""`atom-runner models`: what the installed model packages can run."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated, Any

import typer

from atom.runner.cli.console import write, write_json
from atom.runner.cli.help_text import examples
from atom.runner.loader import ENTRY_POINT_GROUP, installed_providers

MODELS_EXAMPLES = examples("atom-runner models", "atom-runner models --json")


def models(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object for each architecture, a line each.")
    ] = False,
) -> int:
    """List the architectures that can run, and the package each comes from.

    A package adds models through the entry-point group `atom.models`.
    """
    rows = [row for provider in installed_providers() for row in _rows(provider)]
    if as_json:
        for row in rows:
            write_json(row)
        return 0
    width = max(len(row["architecture"]) for row in rows) if rows else 0
    for row in rows:
        write(f"{row['architecture']:<{width}}  {row['package']} {row['version'] or ''}\n")
    return 0


def _rows(provider: Any) -> list[dict[str, Any]]:
    return [
        {
            "architecture": architecture,
            "package": provider.name,
            "version": _version(provider.name),
        }
        for architecture in sorted(provider.architectures)
    ]


def _version(provider_name: str) -> str | None:
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        if provider_name in (entry.name, entry.dist.name if entry.dist else None) and entry.dist is not None:
            return entry.dist.version
    return None
