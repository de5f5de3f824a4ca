"""`atom-runner inspect`: what was recorded for a model."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atom.runner.cli.console import write, write_json
from atom.runner.cli.flags import EngineFlags, takes_flags
from atom.runner.cli.help_text import examples
from atom.runner.cli.start import described, start_recorded_engine

if TYPE_CHECKING:
    from atom.graphs import GraphReport
    from atom.runner.engine import LLMEngine

INSPECT_EXAMPLES = examples(
    "atom-runner inspect",
    "atom-runner inspect --cudagraph-mode full --cudagraph-capture-sizes 1,8,64 --json",
    "atom-runner inspect --cudagraph-capture-sizes 8 --dot | dot -Tsvg > graphs.svg",
)
_REQUEST_GRAPHS = "request graphs"


@takes_flags(engine=True)
def inspect(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with everything.")] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Graphviz digraphs instead of tables.")] = False,
    engine: EngineFlags,
) -> int:
    """Show a model's graphs. They are recorded first; then buckets, segments, regions and bytes are told.

    Where neither level nor graph mode is given the mode is TR_HYBRID. Where no ladder is, the CPU's is
    1, 2, 4, 8.
    """
    llm = start_recorded_engine(engine)
    graphs = recorded_graphs(llm)
    if dot:
        for graph in graphs.values():
            write(graph.to_dot() + "\n")
    elif as_json:
        write_json(_as_json(llm, graphs))
    else:
        _write_text(llm, graphs)
    return 0


def recorded_graphs(engine: LLMEngine) -> dict[str, Any]:
    """The graphs of an engine by name: its request graphs, and a token graph for each recording unit."""
    from torch import nn

    from atom.graphs import token_graphs

    model = engine.runner.model
    units = token_graphs(model) if isinstance(model, nn.Module) else {}
    graphs: dict[str, Any] = {
        f"token graph of {name or type(model).__name__}": graph for name, graph in units.items()
    }
    if engine.runner.req_graph.recordings():
        graphs[_REQUEST_GRAPHS] = engine.runner.req_graph
    return graphs


def _as_json(engine: LLMEngine, graphs: dict[str, Any]) -> dict[str, Any]:
    stats = engine.stats()
    reports: dict[str, GraphReport] = {name: graph.describe() for name, graph in graphs.items()}
    return {
        "model": str(engine.config.model),
        "level": stats.level,
        "mode": stats.mode,
        "captured": stats.captured,
        "capture_seconds": stats.capture_seconds,
        "pool_bytes": max((report.pool_bytes for report in reports.values()), default=0),
        "recordings": [
            {"graph": name, **asdict(recording)}
            for name, report in reports.items()
            for recording in report.recordings
        ],
    }


def _write_text(engine: LLMEngine, graphs: dict[str, Any]) -> None:
    stats = engine.stats()
    write(f"{described(engine)}, level {stats.level}, graph mode {stats.mode}\n")
    if not graphs:
        write("nothing was recorded\n")
    for name, graph in graphs.items():
        report: GraphReport = graph.describe()
        write(f"\n{name}\n{report}\n")
        regions = {region for recording in report.recordings for region in recording.regions}
        inlined = {region for recording in report.recordings for region in recording.inlined}
        for what, names in (("breaks at", regions), ("holds without a break", inlined)):
            if names:
                write(f"{what}: {', '.join(sorted(names))}\n")
