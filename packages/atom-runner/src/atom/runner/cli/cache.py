"""`atom-runner cache`: look at, check and clear the compile cache."""

from __future__ import annotations

import errno
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atom.config import CompilationConfig
from atom.runner.cli.console import say, write, write_json
from atom.runner.cli.help_text import Verb, examples

if TYPE_CHECKING:
    from pathlib import Path

CacheDir = Annotated[
    str,
    typer.Option(
        "--cache-dir", metavar="DIR", help="As for a run. Empty: the default cache.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]

cache = typer.Typer(rich_markup_mode=None)


@cache.callback(
    epilog=examples("atom-runner cache list", "atom-runner cache check --repair", "atom-runner cache clear")
)
def about() -> None:
    """Look at, check and clear the compile cache of levels 2 and 3."""


@cache.command("list", cls=Verb)
def list_(*, cache_dir: CacheDir = "", as_json: AsJson = False) -> int:
    """Show what is cached: runs, and the artifacts they share."""
    from atom.compile.cache_store import list_cache

    report = list_cache(_root(cache_dir))
    if as_json:
        write_json(
            {
                "root": str(report.root),
                "nbytes": report.nbytes,
                "runs": [_plain(asdict(run)) for run in report.runs],
                "artifacts": [_plain(asdict(artifact)) for artifact in report.artifacts],
            }
        )
        return 0
    write(
        f"{report.root}: {len(report.artifacts)} artifacts, {_size(report.nbytes)}, {len(report.runs)} runs\n"
    )
    for run in report.runs:
        pieces = f"{run.pieces} pieces from {len(run.artifacts)} artifacts"
        write(f"  {run.run} rank {run.rank} {run.prefix}: {pieces}, {_when(run.modified_s)}\n")
    return 0


@cache.command(cls=Verb)
def check(
    *,
    cache_dir: CacheDir = "",
    repair: Annotated[
        bool, typer.Option("--repair", help="Also remove what is damaged; it is compiled again when needed.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Read every index and every byte of every artifact; exit code 2 where something is damaged and stays."""
    from atom.compile.cache_store import check_cache

    root = _root(cache_dir)
    problems = check_cache(root, repair=repair)
    if as_json:
        listed = [_plain(asdict(problem)) for problem in problems]
        write_json({"root": str(root), "problems": listed, "repaired": repair})
    else:
        for problem in problems:
            write(f"{problem.path}: {problem.what}\n")
        say(f"{root}: {len(problems)} problems{', removed' if repair and problems else ''}")
    return 2 if problems and not repair else 0


@cache.command(cls=Verb)
def clear(*, cache_dir: CacheDir = "", as_json: AsJson = False) -> int:
    """Remove everything the compile cache keeps, and nothing else. Safe while other processes use it."""
    from atom.compile.cache_store import clear_cache

    root = _root(cache_dir)
    freed = clear_cache(root)
    if as_json:
        write_json({"root": str(root), "freed_bytes": freed})
    else:
        say(f"{root}: {_size(freed)} freed")
    return 0


def _root(cache_dir: str) -> Path:
    root = CompilationConfig(cache_dir=cache_dir).cache_root()
    if root.exists() and not root.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "a cache is a folder, this is a file", str(root))
    return root


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON values: a path as text, a set as a sorted list."""
    return {
        name: sorted(value) if isinstance(value, frozenset) else value if _is_plain(value) else str(value)
        for name, value in fields.items()
    }


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f} MiB"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
