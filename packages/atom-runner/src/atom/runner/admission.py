"""What can never run is refused at once, naming the limit; everything else becomes a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom.runner.errors import PromptError, SamplingParamsError
from atom.runner.request import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom.runner.sampling_params import SamplingParams


@dataclass(frozen=True)
class Limits:
    """What is known once model and cache are there."""

    vocab_size: int
    max_model_len: int
    """Tokens of the longest sequence, prompt and answer together."""
    kv_capacity: int
    """Tokens in the whole KV cache."""
    eos_token_ids: frozenset[int]

    @property
    def max_prompt_tokens(self) -> int:
        """Longest prompt that leaves room for one token of an answer."""
        return min(self.max_model_len - 1, self.kv_capacity)


def admit(
    token_ids: Sequence[int],
    params: SamplingParams,
    limits: Limits,
    *,
    request_id: str,
    index: int,
    seed: int,
) -> Request:
    """A request for a prompt that can run.

    Raises:
        PromptError: it is empty, too long for the context or for the whole KV cache, or holds an id that is
            none.
        SamplingParamsError: a stop token is none of the vocabulary.
    """
    prompt = list(token_ids)
    if not prompt:
        raise PromptError(f"request {request_id}: the prompt is empty; it needs at least one token")
    _check_vocabulary(prompt, limits, request_id)
    if len(prompt) >= limits.max_model_len:
        raise PromptError(
            f"request {request_id}: the prompt has {len(prompt)} tokens; with "
            f"max_model_len={limits.max_model_len} the most is {limits.max_model_len - 1}"
        )
    if len(prompt) > limits.kv_capacity:
        raise PromptError(
            f"request {request_id}: the prompt has {len(prompt)} tokens and the whole KV cache holds "
            f"{limits.kv_capacity}: raise num_kv_blocks or the memory it gets"
        )
    for token_id in params.stop_token_ids:
        if token_id >= limits.vocab_size:
            raise SamplingParamsError(
                f"request {request_id}: stop_token_ids holds {token_id}; the vocabulary ends at "
                f"{limits.vocab_size - 1}"
            )
    wanted = len(prompt) + params.max_tokens
    # The last token of an answer needs no place in the cache: nothing is computed after it.
    possible = min(limits.max_model_len, limits.kv_capacity + 1)
    return Request(
        request_id=request_id,
        index=index,
        token_ids=prompt,
        num_prompt=len(prompt),
        params=params,
        seed=seed,
        stop_token_ids=frozenset(params.stop_token_ids)
        | (frozenset() if params.ignore_eos else limits.eos_token_ids),
        max_total=min(wanted, possible),
        cut_off=_cut_off(limits, possible) if possible < wanted else None,
    )


def _cut_off(limits: Limits, possible: int) -> str:
    if possible == limits.max_model_len:
        return f"the sequence reached max_model_len={limits.max_model_len}"
    return f"the sequence filled the whole KV cache of {limits.kv_capacity} tokens"


def _check_vocabulary(prompt: list[int], limits: Limits, request_id: str) -> None:
    for place, token_id in enumerate(prompt):
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise PromptError(f"request {request_id}: prompt token {place} is {token_id!r}, not a token id")
        if not 0 <= token_id < limits.vocab_size:
            raise PromptError(
                f"request {request_id}: prompt token {place} is {token_id}; the vocabulary has ids 0 to "
                f"{limits.vocab_size - 1}"
            )
