"""What a caller gets back for a request, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atom.runner.detokenizer import Detokenizer
    from atom.runner.request import FinishReason, Request


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A request after one step, or at its end. What it says does not change when the request goes on."""

    index: int
    """Place among the prompts of the call, or order of arrival."""
    request_id: str
    prompt: str | None
    """The prompt's text, a chat's as the template rendered it; None where token ids were given."""
    delta: str = ""
    """Text that became final in this step."""
    finish_reason: FinishReason | None = None
    error: str | None = None
    """What was wrong, where `finish_reason` is `"error"`."""
    detail: str | None = None
    """Why an answer was cut off before the request's own limit."""
    _tokens: list[int] = field(default_factory=list, repr=False)
    _start: int = 0
    _end: int = 0
    _new: int = 0
    _pieces: list[str] | None = field(default=None, repr=False)
    _num_pieces: int = 0

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt as the model saw it."""
        return self._tokens[: self._start]

    @property
    def token_ids(self) -> list[int]:
        """Tokens generated so far, the one that stopped it included."""
        return self._tokens[self._start : self._end]

    @property
    def new_token_ids(self) -> list[int]:
        """Tokens generated in this step."""
        return self._tokens[self._end - self._new : self._end]

    @property
    def text(self) -> str | None:
        """The answer so far; None without a tokenizer."""
        return None if self._pieces is None else "".join(self._pieces[: self._num_pieces])

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class Answer:
    """A request on its way, with its text."""

    def __init__(self, request: Request, *, prompt: str | None, detokenizer: Detokenizer | None) -> None:
        self.request = request
        self.prompt = prompt
        self.error: str | None = None
        """What ended it, where it was ended instead of finishing."""
        self._detokenizer = detokenizer
        self._spelled = request.num_prompt
        # Both lists only grow, so outputs can share them and remember how far they went.
        self._pieces: list[str] | None = None if detokenizer is None else []

    def spell(self) -> str:
        """Text of the tokens not yet spelled; a stop string among it ends the request."""
        if self._detokenizer is None or self._pieces is None:
            return ""
        request, start = self.request, len(self._pieces)
        for token_id in request.token_ids[self._spelled :]:
            self._spelled += 1
            if token_id in request.stop_token_ids and request.finish_reason == "stop":
                break
            self._keep(self._detokenizer.push(token_id))
            if self._detokenizer.stopped_by is not None:
                request.finish_reason = "stop"
                break
        if request.finished:
            self._keep(self._detokenizer.finish())
        return "".join(self._pieces[start:])

    def output(self, *, num_new: int = 0, delta: str = "") -> RequestOutput:
        """The request as it stands."""
        request = self.request
        cut = request.finish_reason == "length" and len(request.token_ids) >= request.max_total
        return RequestOutput(
            index=request.index,
            request_id=request.request_id,
            prompt=self.prompt,
            delta=delta,
            finish_reason=request.finish_reason,
            error=self.error,
            detail=request.cut_off if cut else None,
            _tokens=request.token_ids,
            _start=request.num_prompt,
            _end=len(request.token_ids),
            _new=num_new,
            _pieces=self._pieces,
            _num_pieces=0 if self._pieces is None else len(self._pieces),
        )

    def _keep(self, text: str) -> None:
        if text and self._pieces is not None:
            self._pieces.append(text)
