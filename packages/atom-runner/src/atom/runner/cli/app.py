"""`atom-runner`: finds the verb, runs it, and turns whatever goes wrong into one line and an exit code."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from atom.runner.cli import console
from atom.runner.cli.cache import cache
from atom.runner.cli.chat import CHAT_EXAMPLES, chat
from atom.runner.cli.generate import GENERATE_EXAMPLES, generate
from atom.runner.cli.help_text import Verb, examples
from atom.runner.cli.inspect import INSPECT_EXAMPLES, inspect
from atom.runner.cli.models import MODELS_EXAMPLES, models
from atom.runner.cli.verify import VERIFY_EXAMPLES, verify
from atom.runner.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_READER_GONE = 141
"""As for a program that SIGPIPE ended."""

_HELP = """Run a language model: paged KV cache, continuous batching, CUDA graphs, piecewise compilation.

Without a verb it asks the built-in question of the installed SmolLM2-135M, prints the answer and a table of
what the run did; every flag of `generate` works there too.
"""
app = typer.Typer(
    name=console.PROGRAM,
    help=_HELP,
    epilog=examples(
        "atom-runner",
        "atom-runner generate --prompt 'Name three colours.' --max-tokens 40",
        "atom-runner generate --model ./Llama-3.2-1B --level 3 --prompts-file in.jsonl --json",
        "atom-runner chat --temperature 0.7",
        "atom-runner VERB --help",
    ),
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command(cls=Verb, epilog=GENERATE_EXAMPLES)(generate)
app.command(cls=Verb, epilog=CHAT_EXAMPLES)(chat)
app.command(cls=Verb, epilog=INSPECT_EXAMPLES)(inspect)
app.command(cls=Verb, epilog=VERIFY_EXAMPLES)(verify)
app.command(cls=Verb, epilog=MODELS_EXAMPLES)(models)
app.add_typer(cache, name="cache")

_OF_THE_PROGRAM = ("--help", "-h", "--version", "--debug")


def _print_version(wanted: bool) -> None:
    if wanted:
        console.write(f"{console.PROGRAM} {importlib.metadata.version(console.PROGRAM)}\n")
        raise typer.Exit


@app.callback()
def program(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and log lines.")] = False,
) -> None:
    """Flags that come before the verb; `main` has acted on them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: done. 2: something could not be done, said in one line on standard error. 130: interrupted.
    141: whoever read standard output has gone.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    leading = _leading(arguments)
    debug = "--debug" in arguments[:leading]
    try:
        console.prepare_streams(debug=debug)
        code = app(_with_verb(arguments, leading), prog_name=console.PROGRAM, standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        console.discard_output()
        return EXIT_READER_GONE
    except SystemExit as leaving:  # typer's answer to a broken pipe; nothing here leaves that way
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
        console.discard_output()
        return EXIT_READER_GONE
    except Exception as error:
        if debug:
            raise
        console.say_error(_describe(error))
        return EXIT_ERROR


def _leading(arguments: list[str]) -> int:
    """How many arguments come before the verb."""
    return next((i for i, a in enumerate(arguments) if a not in _OF_THE_PROGRAM), len(arguments))


def _with_verb(arguments: list[str], leading: int) -> list[str]:
    """Without a verb: `generate` with the built-in question."""
    own, rest = arguments[:leading], arguments[leading:]
    if {"--help", "-h", "--version"} & set(own) or (rest and not rest[0].startswith("-")):
        return arguments
    return [*own, "generate", "--built-in-question", *rest]


def _describe(error: Exception) -> str:
    if hasattr(error, "format_message"):  # a usage error: typer's own, or click's below it
        return f"{error.format_message()} (see --help)"
    if isinstance(error, RunnerError | ValueError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"unexpected {type(error).__name__}: {error} (atom-runner --debug VERB ... shows where)"


if __name__ == "__main__":
    sys.exit(main())
