"""`atom-runner chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atom.runner.cli.answers import json_answer
from atom.runner.cli.console import say, say_error, stderr_console, write, write_json
from atom.runner.cli.flags import EngineFlags, takes_flags
from atom.runner.cli.help_text import examples
from atom.runner.cli.prompts import Row
from atom.runner.cli.start import described, start_engine
from atom.runner.errors import RequestError, RunnerError, StepError
from atom.runner.run_table import run_table
from atom.runner.tokenizer import require_text

if TYPE_CHECKING:
    from atom.runner.engine import LLMEngine
    from atom.runner.output import RequestOutput
    from atom.runner.sampling_params import SamplingParams

CHAT_EXAMPLES = examples(
    "atom-runner chat --temperature 0.7 --system 'Answer in one sentence.'",
    r"printf 'Who are you?\nWho made you?\n' | atom-runner chat",
)
_COMMANDS = """/reset   forget the conversation
/stats   show the table of the run so far
/help    show this
/exit    leave, as does the end of input (Ctrl-D); Ctrl-C stops an answer"""


@takes_flags(engine=True, sampling=True)
def chat(
    *,
    system: Annotated[
        str | None,
        typer.Option("--system", metavar="TEXT", help="What the model is told first.", show_default=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object for each answer, as generate --json writes it.")
    ] = False,
    engine: EngineFlags,
    sampling: SamplingParams,
) -> int:
    """Talk with a model. Each turn's prompt is the whole conversation; what was computed before is reused.

    Each line of standard input is a turn, so a pipe works as well as a terminal. Lines that begin with a
    slash are commands: /reset, /stats, /help, /exit.
    """
    llm = start_engine(engine)
    if llm.tokenizer is None or llm.tokenizer.chat_template is None:
        raise RunnerError("this checkpoint has no chat template: use atom-runner generate --raw")
    return _Conversation(llm, sampling, system=system, as_json=as_json).run()


class _Conversation:
    def __init__(
        self, engine: LLMEngine, params: SamplingParams, *, system: str | None, as_json: bool
    ) -> None:
        self._engine = engine
        self._params = params
        self._as_json = as_json
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._messages: list[dict[str, Any]] = list(self._opening)
        self._turns = 0
        self._failed = False
        self._at_terminal = sys.stdin.isatty()

    def run(self) -> int:
        if self._at_terminal:
            say(f"{described(self._engine)}. /help lists the commands.")
        while (line := self._read_line()) is not None:
            text = line.strip()
            if text in ("/exit", "/quit"):
                break
            if text.startswith("/"):
                self._command(text)
            elif text:
                self._turn(line.rstrip("\r\n"))
        return 2 if self._failed else 0

    def _read_line(self) -> str | None:
        if self._at_terminal and sys.stdout.isatty():
            import readline  # noqa: F401  gives `input` line editing and a history

            try:
                return input("> ")
            except EOFError:
                say("")
                return None
        if self._at_terminal:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        return line or None

    def _command(self, text: str) -> None:
        if text == "/reset":
            self._messages = list(self._opening)
            say("The conversation is forgotten.")
        elif text == "/stats":
            stderr_console().print(run_table(self._engine.stats(), model=described(self._engine)))
        elif text == "/help":
            say(_COMMANDS)
        else:
            self._refuse(f"no command {text.split()[0]}; /help lists them")

    def _turn(self, question: str) -> None:
        row = Row(self._turns, f"turn {self._turns}", question)
        messages = [*self._messages, {"role": "user", "content": question}]
        try:
            require_text(question)
            self._engine.add_request(messages, self._params, request_id=row.label)
            output = self._follow(row.label)
        except StepError as error:
            self._refuse(str(error))
            return
        except RequestError as error:
            self._refuse(f"{str(error).removeprefix('request ')} (/reset forgets the conversation)")
            return
        self._turns += 1
        answer = "" if output is None else output.text or ""
        # What was said counts even where it was interrupted: the next question may refer to it.
        self._messages = [*messages, {"role": "assistant", "content": answer}]
        if self._as_json and output is not None:
            write_json(json_answer(row, output))

    def _follow(self, request_id: str) -> RequestOutput | None:
        """The last output of a request, its text shown on the way; Ctrl-C at a terminal ends it early."""
        output = None
        try:
            while self._engine.has_unfinished_requests():
                for output in self._engine.step():
                    if not self._as_json:
                        write(output.delta)
        except KeyboardInterrupt:
            if not self._at_terminal:
                raise
            self._engine.abort(request_id)
        if not self._as_json:
            write("\n")
        return output

    def _refuse(self, message: str) -> None:
        say_error(message)
        self._failed = self._failed or not self._at_terminal
