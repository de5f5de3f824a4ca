"""Who runs in the next step, and how many tokens of each.

Running requests come first, oldest first; then waiting ones, oldest first, as long as the step's token
budget, rows and blocks last. A prompt longer than what is left of the budget runs in chunks. When blocks run
out, the youngest running request gives its own back and starts again later: it keeps every token and computes
its cache anew.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atom.runner.request import NO_ROW, FinishReason, Request

if TYPE_CHECKING:
    from atom.runner.block_manager import BlockManager


@dataclass(slots=True)
class StepPlan:
    """The requests of one step and how many tokens each computes."""

    requests: list[Request] = field(default_factory=list)
    query_lens: list[int] = field(default_factory=list)
    num_tokens: int = 0
    is_prefill: bool = False
    """Whether prompt tokens, or those of a restart, are among them: a mixed step counts as prefill."""

    def add(self, request: Request, query_len: int) -> None:
        self.requests.append(request)
        self.query_lens.append(query_len)
        self.num_tokens += query_len
        if query_len > 1 or request.num_computed < request.num_prompt:
            self.is_prefill = True


class Scheduler:
    """Keeps the waiting and the running, and plans steps."""

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        chunked_prefill: bool = True,
    ) -> None:
        self.blocks = blocks
        self.max_num_batched_tokens = max_num_batched_tokens
        self.chunked_prefill = chunked_prefill
        self.num_preemptions = 0
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._rows = list(range(max_num_seqs - 1, -1, -1))

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def add(self, request: Request) -> None:
        """Take in a request that is known to fit: one that fits the whole cache alone always gets its
        turn."""
        self._waiting.append(request)

    def plan(self) -> StepPlan:
        """Decide the next step. Its requests hold the blocks and the row they need for it."""
        plan = StepPlan()
        if self._plan_running(plan):
            self._plan_waiting(plan)
        return plan

    def computed(self, plan: StepPlan) -> None:
        """The step ran: its tokens are in the cache."""
        for request, query_len in zip(plan.requests, plan.query_lens, strict=True):
            request.num_computed += query_len
            if request.num_computed // self.blocks.block_size > request.num_registered:
                self.blocks.register(request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request, waiting or running, and take its blocks and row back. Ending it twice does
        nothing."""
        request.finish_reason = reason
        if request.row != NO_ROW:
            self._running.remove(request)
            self._leave(request)
        elif request in self._waiting:
            self._waiting.remove(request)

    def remove_finished(self) -> None:
        """Take blocks and rows back from the running requests that have a `finish_reason`."""
        finished = [request for request in self._running if request.finish_reason is not None]
        if finished:
            self._running = [request for request in self._running if request.finish_reason is None]
            for request in finished:
                self._leave(request)

    def _plan_running(self, plan: StepPlan) -> bool:
        """Plan those already running; whether any block is left for newcomers."""
        budget = self.max_num_batched_tokens
        enough = True
        index = 0
        while index < len(self._running) and budget > 0:
            request = self._running[index]
            query_len = min(len(request.token_ids) - request.num_computed, budget)
            needed = request.num_computed + query_len
            while not self.blocks.grow(request, needed):
                enough = False
                self._preempt_youngest()
                if request.row == NO_ROW:
                    return False
            plan.add(request, query_len)
            budget -= query_len
            index += 1
        return enough

    def _plan_waiting(self, plan: StepPlan) -> None:
        while self._waiting and self._rows:
            budget = self.max_num_batched_tokens - plan.num_tokens
            request = self._waiting[0]
            if budget <= 0:
                return
            self.blocks.reuse_prefix(request)
            missing = len(request.token_ids) - request.num_computed
            query_len = min(missing, budget)
            held_back = query_len < missing and not self.chunked_prefill and plan.requests
            if held_back or not self._has_room(request):
                self.blocks.release(request)
                return
            self.blocks.grow(request, request.num_computed + query_len)
            self._waiting.popleft()
            request.row = self._rows.pop()
            self._running.append(request)
            plan.add(request, query_len)

    def _has_room(self, request: Request) -> bool:
        """Whether a newcomer fits with all it has, and leaves a block for each that runs to grow into.

        Without that margin newcomers are started only to be preempted: on chat-like lengths it took away 39
        to 69 % of the preemptions for less than 0.5 % more steps.
        """
        missing = self.blocks.blocks_for(len(request.token_ids)) - len(request.blocks)
        return missing + len(self._running) <= self.blocks.num_free

    def _preempt_youngest(self) -> None:
        # Never one already in the plan: those before the request in need are older and stay.
        request = self._running.pop()
        self._leave(request)
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._waiting.appendleft(request)

    def _leave(self, request: Request) -> None:
        self.blocks.release(request)
        self._rows.append(request.row)
        request.row = request.table_row = NO_ROW
