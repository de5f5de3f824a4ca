"""A tokenizer.json given in place of the checkpoint's own."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  a field of a dataclass
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from atom.runner.errors import TokenizerError

if TYPE_CHECKING:
    from atom.runner.protocols import TokenizerData


@dataclass(frozen=True)
class GivenTokenizer:
    """Tokenizer data whose vocabulary comes from a file and whose chat template the checkpoint brought."""

    json: str
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    add_bos: bool = False


def tokenizer_from_file(path: str, own: TokenizerData | None) -> GivenTokenizer:
    """The file's tokenizer; `own` is the checkpoint's, for what a tokenizer.json does not hold.

    Raises:
        TokenizerError: the file cannot be read.
    """
    file = Path(path).expanduser()
    file = file / "tokenizer.json" if file.is_dir() else file
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"tokenizer {path!r} cannot be read: {error}; give a tokenizer.json") from error
    if own is None:
        return GivenTokenizer(text)
    return GivenTokenizer(
        text, own.chat_template, own.bos_token, own.eos_token, own.special_tokens, own.add_bos
    )
