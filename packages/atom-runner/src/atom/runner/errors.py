"""What can go wrong between a prompt and its answer.

RunnerError
├── ModelLoadError (ValueError)         the path given is no model that an installed package can open
├── TokenizerError (ValueError)         the checkpoint's tokenizer cannot be used
│   └── ChatTemplateError               its chat template is missing, broken or refused these messages
├── RequestError (ValueError)           this request can never run; the others are not concerned
│   ├── PromptError                     an empty, too long or meaningless prompt
│   ├── SamplingParamsError             a sampling setting out of range
│   └── DuplicateRequestError           a live request has that id already
├── KVCacheError (ValueError)           memory or settings leave no room for a KV cache
├── CaptureError                        a graph could not be recorded
└── StepError                           a forward raised; the requests of that step ended with it
"""

from __future__ import annotations


class RunnerError(Exception):
    """Base of everything this package raises on purpose."""


class ModelLoadError(RunnerError, ValueError):
    """The model path leads to nothing that an installed model package can open."""


class TokenizerError(RunnerError, ValueError):
    """The checkpoint's tokenizer cannot be read or used."""


class ChatTemplateError(TokenizerError):
    """The chat template is missing, does not parse, or refused the messages."""


class RequestError(RunnerError, ValueError):
    """One request is at fault and was not taken in; the engine and its other requests go on."""


class PromptError(RequestError):
    """The prompt is empty, too long for the context or the KV cache, or holds ids outside the vocabulary."""


class SamplingParamsError(RequestError):
    """A sampling setting is out of range; the message names field, value and what is allowed."""


class DuplicateRequestError(RequestError):
    """A request with that id is still alive."""


class KVCacheError(RunnerError, ValueError):
    """Memory or settings leave no room for a usable KV cache."""


class CaptureError(RunnerError):
    """A graph could not be recorded; the message names bucket and cause."""


class StepError(RunnerError):
    """A forward raised. Its requests have ended and given their blocks back; the engine can go on."""

    def __init__(self, message: str, request_ids: tuple[str, ...]) -> None:
        super().__init__(message)
        self.request_ids = request_ids
