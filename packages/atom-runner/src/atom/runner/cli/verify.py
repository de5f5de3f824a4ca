"""`atom-runner verify`: does a replay still do what eager does?"""

from __future__ import annotations

import math
from typing import Annotated

import typer

from atom.runner.cli.console import say, say_error, write, write_json
from atom.runner.cli.flags import EngineFlags, takes_flags
from atom.runner.cli.help_text import examples
from atom.runner.cli.start import start_recorded_engine

VERIFY_EXAMPLES = examples(
    "atom-runner verify",
    "atom-runner verify --cudagraph-mode full --level 3 --json",
)


@takes_flags(engine=True)
def verify(
    *,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance", metavar="X", help="Largest absolute difference that passes.", show_default=True
        ),
    ] = 0.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object for each check, a line each.")
    ] = False,
    engine: EngineFlags,
) -> int:
    """Compare replays with eager. Every recorded bucket runs made-up steps, full and partly filled.

    Eager runs at the bucket's shape, so equal means equal to the last bit unless --tolerance allows more. The
    exit code is 2 where a difference is larger. Where neither level nor graph mode is given the mode is
    TR_HYBRID. Where no ladder is, the CPU's is 1, 2, 4, 8.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise typer.BadParameter(
            f"--tolerance = {tolerance:g} is not allowed; allowed: a number of at least 0"
        )
    llm = start_recorded_engine(engine)
    from atom.runner.verify import verify_buckets

    checked = wrong = 0
    for check in verify_buckets(llm.runner, llm.scheduler.blocks):
        passed = check.worst <= tolerance
        checked, wrong = checked + 1, wrong + (not passed)
        if as_json:
            row = {"kind": check.kind, "bucket": check.bucket, "live_rows": check.live_rows}
            write_json({**row, "worst": check.worst, "passed": passed})
        else:
            verdict = "equal" if check.equal else f"differs by {check.worst:.3g}"
            write(f"{check.kind} bucket {check.bucket}, {check.live_rows} live rows: {verdict}\n")
    if not checked:
        say_error(f"nothing was recorded in graph mode {llm.runner.mode.name}, so nothing could be verified")
        return 2
    say(f"{checked} checks, {wrong} with a difference above {tolerance:g}")
    return 2 if wrong else 0
