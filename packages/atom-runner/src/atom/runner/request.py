"""The state of one request, from its arrival to its last token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from atom.runner.prefix_cache import Digest
    from atom.runner.sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "error"]

NO_ROW = -1
"""Row of a request that is not running."""


@dataclass(slots=True, eq=False)
class Request:
    """What is known of a request. `token_ids` only ever grows: preemption forgets computed cache, never a
    token."""

    request_id: str
    index: int
    """Order of arrival; also the order of service."""
    token_ids: list[int]
    """Prompt, then answer."""
    num_prompt: int
    params: SamplingParams
    seed: int
    """Drawn by the engine where the parameters name none."""
    stop_token_ids: frozenset[int]
    max_total: int
    """Tokens, prompt included, after which the answer is cut off."""
    cut_off: str | None = None
    """Why `max_total` is lower than the request asked for, in words."""
    num_computed: int = 0
    """Leading tokens whose keys and values lie in the cache."""
    num_reused: int = 0
    """Prompt tokens found in the prefix cache when the request last started."""
    num_preemptions: int = 0
    row: int = NO_ROW
    """Its row in the runner's tables while it runs."""
    table_row: int = NO_ROW
    """Row of the block tables that holds `blocks`; behind `row` until the next step writes it."""
    blocks: list[int] = field(default_factory=list)
    digests: list[Digest] = field(default_factory=list)
    """Digests of its full blocks, as far as they were needed."""
    num_registered: int = 0
    """Leading blocks that the prefix cache was told of."""
    finish_reason: FinishReason | None = None

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def append(self, token_id: int) -> None:
        """Take a sampled token, and notice when it is the last."""
        self.token_ids.append(token_id)
        if token_id in self.stop_token_ids:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.max_total:
            self.finish_reason = "length"
