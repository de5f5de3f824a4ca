"""`atom-runner generate`: answers for prompts from flags or a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from atom.runner.cli.answers import JsonPrinter, Printer, TextPrinter
from atom.runner.cli.console import say, stderr_console
from atom.runner.cli.flags import EngineFlags, takes_flags
from atom.runner.cli.help_text import examples
from atom.runner.cli.prompts import Row, rows_from_file, rows_from_flags
from atom.runner.cli.start import described, has_chat_template, start_engine
from atom.runner.errors import PromptError, RequestError, StepError
from atom.runner.run_table import run_table

if TYPE_CHECKING:
    from atom.runner.engine import LLMEngine
    from atom.runner.sampling_params import SamplingParams

GENERATE_EXAMPLES = examples(
    "atom-runner generate -p 'Name three colours.' -p 'Name three rivers.' --max-tokens 40",
    "atom-runner generate --raw -p 'def fibonacci(n):' --stop 'def ' --model ./model.gguf --level 3",
    """echo '{"prompt": "Tell a story.", "seed": 7}' | atom-runner generate --top-p 0.9 --prompts-file -""",
)
QUESTION = "What is the capital of France?"


@takes_flags(engine=True, sampling=True)
def generate(
    *,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="A prompt; repeatable.", show_default=False),
    ] = None,
    prompts_file: Annotated[
        str | None,
        typer.Option(
            "--prompts-file",
            metavar="FILE",
            help="JSON objects, one a line, each with prompt, messages or prompt_token_ids and, if they "
            "differ, its own sampling fields; - is standard input.",
            show_default=False,
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue prompts as they are, without the chat template.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON object a line: index, prompt, prompt_token_ids, token_ids, text, finish_reason, "
            "and error where there is one.",
        ),
    ] = False,
    built_in_question: Annotated[bool, typer.Option("--built-in-question", hidden=True)] = False,
    engine: EngineFlags,
    sampling: SamplingParams,
) -> int:
    """Answer prompts. Text goes to standard output, the table of the run to standard error.

    Several prompts run as one batch, and answers appear in the order of the prompts. A prompt that cannot run
    does not keep the others from it; the exit code is then 2.
    """
    rows = _rows(prompt or [], prompts_file, sampling, raw=raw, question=built_in_question)
    printer: Printer = JsonPrinter() if as_json else TextPrinter(rows)
    runnable = any(row.error is None for row in rows)
    llm = start_engine(engine) if runnable else None
    failed = answer(llm, rows, printer)
    if llm is not None and not as_json and failed < len(rows):
        stderr_console().print(run_table(llm.stats(), model=described(llm)))
    return 2 if failed else 0


def answer(engine: LLMEngine | None, rows: list[Row], printer: Printer) -> int:
    """Run all rows as one batch and return how many got no answer; only rows without error need an engine."""
    running: dict[str, Row] = {}
    failed = 0
    templated = engine is not None and has_chat_template(engine)
    for row in rows:
        error = row.error
        if error is None and engine is not None:
            try:
                engine.add_request(row.for_engine(templated=templated), row.params, request_id=row.label)
                running[row.label] = row
            except RequestError as refusal:
                error = str(refusal).removeprefix("request ")
        if error is not None:
            failed += 1
            printer.refuse(row, error)
    while running and engine is not None:
        try:
            outputs = engine.step()
        except StepError as broken:
            for request_id in broken.request_ids:
                failed += 1
                printer.refuse(running.pop(request_id), f"{request_id}: {broken}")
            continue
        for output in outputs:
            row = running[output.request_id]
            printer.show(row, output)
            if output.finished:
                del running[output.request_id]
                failed += output.finish_reason == "error"
    return failed


def _rows(
    prompts: list[str], prompts_file: str | None, sampling: SamplingParams, *, raw: bool, question: bool
) -> list[Row]:
    if prompts and prompts_file is not None:
        raise PromptError("--prompt and --prompts-file are two ways to say the same: give one of them")
    if prompts_file is not None:
        return rows_from_file(prompts_file, sampling, raw=raw)
    if question and not prompts:
        say(f"> {QUESTION}")
        prompts = [QUESTION]
    if not prompts:
        raise PromptError("nothing to answer: give --prompt TEXT or --prompts-file FILE")
    return rows_from_flags(prompts, sampling, raw=raw)
