from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from atom.runner.cli import app
from atom.runner.errors import ModelLoadError
from atom.runner.loader import default_checkpoint

BAD_INPUT = [
    (["nonsense"], "No such command 'nonsense'"),
    (["--bogus"], "No such option: --bogus"),
    (["generate"], "nothing to answer: give --prompt TEXT or --prompts-file FILE"),
    (["generate", "-p", "a", "--prompts-file", "b"], "two ways to say the same"),
    (["generate", "-p", ""], "prompt 0: prompt is empty"),
    (["generate", "-p", "a", "--max-tokens", "0"], "max_tokens=0: must be at least 1"),
    (["generate", "-p", "a", "--max-tokens", "few"], "'--max-tokens'"),
    (["generate", "-p", "a", "--level", "9"], "--level = '9' is not allowed"),
    (["generate", "-p", "a", "--stop-token-ids", "x"], "--stop-token-ids = 'x' is not allowed"),
    (["generate", "-p", b"\xff".decode(errors="surrogateescape")], "it holds U+DCFF"),
    (["generate", "--prompts-file", "no/such/file"], "no/such/file: No such file or directory"),
    (["generate", "--prompts-file", "."], ".: Is a directory"),
    (["generate", "--prompts-file", ""], "--prompts-file is empty: give the path of a file, or -"),
    (["generate", "-p", "a", "--max-model-len", "1"], "--max-model-len = 1 is not allowed"),
    (["verify", "--tolerance", "nan"], "--tolerance = nan is not allowed; allowed: a number of at least 0"),
    (["verify", "--tolerance", "inf"], "--tolerance = inf is not allowed"),
    (["verify", "--tolerance=-1"], "--tolerance = -1 is not allowed"),
    (["cache", "list", "--cache-dir", __file__], "test_app.py: a cache is a folder, this is a file"),
    (["cache", "clear", "--cache-dir", __file__], "test_app.py: a cache is a folder, this is a file"),
    (["generate", "-p", "a", "--model", "no/such/model.gguf"], "no file or folder"),
    (["chat", "--model", "meta-llama/Llama-3.1-8B"], "nothing is downloaded here"),
    (["generate", "-p", "a", "--model", "FOLDER"], "a folder but no checkpoint: no config.json"),
    (["generate", "-p", "a", "--cudagraph-capture-sizes", "999", "--max-num-seqs", "4"], "999"),
]


@pytest.mark.parametrize(("arguments", "error"), BAD_INPUT, ids=lambda value: str(value)[:40])
def test_bad_input_gives_one_line_and_exit_code_2_at_once(
    arguments: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = app.main([str(tmp_path) if argument == "FOLDER" else argument for argument in arguments])
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert printed.err.startswith("atom-runner: error: ")
    assert printed.err.count("\n") == 1
    assert error in printed.err


def test_a_damaged_checkpoint_gives_one_line_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cut.gguf"
    with default_checkpoint().open("rb") as whole:
        path.write_bytes(whole.read(5_000_000))
    assert app.main(["generate", "-p", "a", "--model", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"atom-runner: error: {path}: tensor ")
    assert error.count("\n") == 1


def failing(error: BaseException) -> object:
    def verb(*arguments: object, **named: object) -> int:
        raise error

    return verb


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ModelLoadError("a\n  b"), 2, "atom-runner: error: a b\n"),
        (OSError(28, "No space left on device", "x.bin"), 2, "error: x.bin: No space left on device\n"),
        (RuntimeError("odd\nthing"), 2, "error: unexpected RuntimeError: odd thing"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_whatever_is_raised_becomes_one_line(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(app, "app", failing(error))
    assert app.main(["models"]) == code
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") <= 1


def test_debug_shows_the_traceback_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "app", failing(RuntimeError("odd")))
    with pytest.raises(RuntimeError, match="odd"):
        app.main(["--debug", "models"])


def test_without_a_verb_the_built_in_question_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(app, "app", lambda arguments, **named: seen.append(arguments))
    for arguments in ([], ["--level", "0"], ["--debug"], ["--debug", "chat"], ["--help"]):
        assert app.main(arguments) == 0
    assert seen == [
        ["generate", "--built-in-question"],
        ["generate", "--built-in-question", "--level", "0"],
        ["--debug", "generate", "--built-in-question"],
        ["--debug", "chat"],
        ["--help"],
    ]


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["chat", "-h"], ["--version"]])
def test_help_loads_no_torch(arguments: list[str]) -> None:
    result = python(
        "import sys\nfrom atom.runner.cli.app import main\n"
        f"code = main({arguments})\nsys.exit(code or 'torch' in sys.modules)"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


@pytest.mark.parametrize(("arguments", "error"), BAD_INPUT[:6], ids=lambda value: str(value)[:40])
def test_bad_input_is_answered_before_torch_is_loaded(arguments: list[str], error: str) -> None:
    result = python(
        "import sys\nfrom atom.runner.cli.app import main\n"
        f"main({arguments})\nsys.exit('torch' in sys.modules)"
    )
    assert (result.returncode, error in result.stderr) == (0, True), result.stderr


def test_the_installed_command_is_this_program() -> None:
    command = Path(sys.executable).parent / "atom-runner"
    result = subprocess.run([str(command), "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("atom-runner 0.")


def test_a_reader_that_goes_away_ends_the_program_quietly() -> None:
    command = f"{sys.executable} -m atom.runner.cli.app generate --help | head -n 1"
    result = subprocess.run(
        ["bash", "-c", f'{command}; echo "${{PIPESTATUS[0]}}"'], capture_output=True, text=True, check=True
    )
    first, code = result.stdout.splitlines()
    assert first.startswith("Usage: ")
    assert code in ("0", "141")
    assert result.stderr == ""


def test_output_for_a_reader_that_has_gone_is_dropped() -> None:
    code = (
        "import os, sys\nfrom atom.runner.cli import app, console\n"
        "reader, writer = os.pipe()\nos.close(reader)\nos.dup2(writer, 1)\n"
        "app.app = lambda *a, **n: console.write('lost\\n')\nsys.exit(app.main(['models']))"
    )
    result = python(code)
    assert (result.returncode, result.stderr) == (141, "")


def with_closed(redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = shlex.join([sys.executable, "-m", "atom.runner.cli.app", *arguments])
    return subprocess.run(
        ["sh", "-c", f"{program} {redirection}"], capture_output=True, text=True, check=False, timeout=240
    )


def test_a_closed_standard_output_is_said_before_any_work() -> None:
    done = with_closed(">&-", "models")
    assert done.returncode == 2
    assert done.stderr == "atom-runner: error: standard output is closed: there is nowhere to write to\n"


def test_a_closed_standard_input_has_no_request() -> None:
    done = with_closed("<&-", "generate", "--prompts-file", "-")
    assert done.returncode == 2
    assert done.stderr == "atom-runner: error: standard input holds no request\n"


def test_a_closed_standard_error_costs_the_messages_alone() -> None:
    done = with_closed("2>&-", "models", "--json")
    assert done.returncode == 0
    assert "LlamaForCausalLM" in done.stdout
