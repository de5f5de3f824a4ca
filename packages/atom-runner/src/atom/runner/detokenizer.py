"""Answers as text while they grow: token by token, never half a character, never part of a stop string."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom.runner.tokenizer import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER = 4
"""Bytes of the longest UTF-8 character."""
_CONTEXT = 5
"""Tokens of context to decode a new one with: some vocabularies write a space only between tokens."""


class Detokenizer:
    """The text of one request.

    `push` takes each generated token and returns the text that is final now. Held back are the bytes of an
    unfinished character and any ending that could still become a stop string; `finish` hands out the rest.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, prompt_token_ids: Sequence[int] = (), stop: Sequence[str] = ()
    ) -> None:
        """`prompt_token_ids` gives the context in which the first tokens are spelled."""
        stream = _ByteStream if tokenizer.is_byte_level else _WindowStream
        self._stream: _TextStream = stream(tokenizer, prompt_token_ids[-2 * _CONTEXT :])
        self._stop = tuple(text for text in stop if text)
        self._held = ""
        self._shown: list[str] = []
        self.stopped_by: str | None = None
        """The stop string that ended the text, if one did; it is not part of the text."""

    @property
    def text(self) -> str:
        """All text handed out so far: the deltas of `push` and `finish`, joined."""
        return "".join(self._shown)

    def push(self, token_id: int) -> str:
        """Take one generated token; return the new final text, often empty."""
        return self._take(self._stream.push(token_id))

    def finish(self) -> str:
        """Return what was held back; an unfinished character becomes U+FFFD."""
        delta = self._take(self._stream.finish())
        if self.stopped_by is None:
            delta += self._show(self._held)
            self._held = ""
        return delta

    def _take(self, new_text: str) -> str:
        if self.stopped_by is not None or not new_text:
            return ""
        text = self._held + new_text
        found = [(at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            end, self.stopped_by = min(found, key=lambda hit: hit[0])
            self._held = ""
        else:
            end = len(text) - self._possible_stop(text)
            self._held = text[end:]
        return self._show(text[:end])

    def _possible_stop(self, text: str) -> int:
        """Length of the longest ending of `text` that is the beginning of a stop string."""
        longest = max(map(len, self._stop), default=0)
        for length in range(min(longest - 1, len(text)), 0, -1):
            ending = text[-length:]
            if any(stop.startswith(ending) for stop in self._stop):
                return length
        return 0

    def _show(self, text: str) -> str:
        if text:
            self._shown.append(text)
        return text


class _TextStream(Protocol):
    def push(self, token_id: int) -> str: ...
    def finish(self) -> str: ...


class _ByteStream:
    """For byte-level vocabularies: tokens are bytes, and bytes are decoded as they come."""

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int]) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        for token_id in context:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._token_bytes[token_id])

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowStream:
    """For any other vocabulary: the difference that a new token makes to the text of a short window."""

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._window = list(context)
        # A window that starts inside a character would spoil all bytes after it.
        while self._window and tokenizer.decode(self._window).startswith(_REPLACEMENT):
            del self._window[0]
        self._shown = len(tokenizer.decode(self._window))
        self._cut = len(self._window)
        self._pending = 0

    def push(self, token_id: int) -> str:
        self._window.append(token_id)
        self._pending += 1
        text = self._tokenizer.decode(self._window)
        delta = text[self._shown : self._final_length(text)]
        self._shown += len(delta)
        if self._shown >= len(text):
            self._pending = 0
            if len(self._window) - self._cut >= _CONTEXT:
                self._start_window_at_cut()
        return delta

    def _start_window_at_cut(self) -> None:
        # Cuts lie only where all text had been shown, so never inside a character.
        del self._window[: self._cut]
        self._cut = len(self._window)
        self._shown = len(self._tokenizer.decode(self._window))

    def finish(self) -> str:
        return self._tokenizer.decode(self._window)[self._shown :]

    def _final_length(self, text: str) -> int:
        if not text.endswith(_REPLACEMENT):
            return len(text)
        if self._pending < _LONGEST_CHARACTER:
            return 0
        # More tokens than a character has bytes: what is older than one character's beginning stays as it is.
        ending = text[-(_LONGEST_CHARACTER - 1) :]
        return len(text) - (len(ending) - len(ending.rstrip(_REPLACEMENT)))
