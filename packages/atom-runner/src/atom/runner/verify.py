"""Every recorded bucket replayed against an eager run of the same step."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch

from atom.graphs.dispatch import ForwardMode
from atom.graphs.forward_context import reset_forward_context
from atom.graphs.region_graph import request_bucket
from atom.runner.errors import RunnerError
from atom.runner.request import Request
from atom.runner.sampling_params import SamplingParams
from atom.runner.scheduler import StepPlan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atom.runner.block_manager import BlockManager
    from atom.runner.model_runner import ModelRunner

Kind = Literal["request", "decode", "prefill"]


@dataclass(frozen=True)
class BucketCheck:
    """One bucket at one number of live rows."""

    kind: Kind
    bucket: int
    """Sequences of a request graph, rows of a token graph."""
    live_rows: int
    worst: float
    """Largest absolute difference between the live rows' hidden states, replayed and eager at the bucket's
    shape."""

    @property
    def equal(self) -> bool:
        """Whether they agree to the last bit."""
        return self.worst == 0.0


def verify_buckets(runner: ModelRunner, blocks: BlockManager, *, seed: int = 0) -> Iterator[BucketCheck]:
    """Replay every bucket on a made-up step, full and partly filled, and compare it with eager.

    The step's sequences use the cache's blocks, so the engine must be idle; prefixes are forgotten.

    Raises:
        RunnerError: requests hold blocks.
    """
    if blocks.num_free != blocks.num_blocks:
        raise RunnerError("buckets are verified on an idle engine: finish or abort its requests first")
    blocks.forget_prefixes()
    check = _Checker(runner, blocks, seed)
    for kind, sizes in runner.captured.items():
        for bucket in sizes:
            yield from check.bucket(kind, bucket)  # type: ignore[arg-type]


class _Checker:
    def __init__(self, runner: ModelRunner, blocks: BlockManager, seed: int) -> None:
        self._runner = runner
        self._num_blocks = blocks.num_blocks
        self._random = random.Random(seed)
        self._fill_cache(seed)

    def bucket(self, kind: Kind, bucket: int) -> Iterator[BucketCheck]:
        query_len = self._runner.config.max_query_len
        most = bucket if kind != "decode" else bucket // query_len
        for units in sorted({most, self._random.randint(1, most)}, reverse=True):
            plan = self._prompts(units) if kind == "prefill" else self._decode(units)
            yield self._compare(kind, bucket, plan)

    @torch.inference_mode()
    def _compare(self, kind: Kind, bucket: int, plan: StepPlan) -> BucketCheck:
        runner, is_prefill = self._runner, kind == "prefill"
        query_len = runner.config.max_query_len
        rows = bucket * query_len if kind == "request" else bucket
        running_bs = len(plan.requests) if is_prefill else rows // query_len
        mode = ForwardMode(
            kind="request" if kind == "request" else "token",
            running_bs=running_bs,
            running_tokens=rows,
            token_graph=kind != "request",
            ubatch_split_bs=None,
            reason="verify",
        )
        runner.batch.fill(plan)
        runner.batch.send(running_bs, rows)
        eager = replace(mode, kind="eager", token_graph=False)
        # The same metadata as the recording's: a request bucket has attention bodies of its own.
        fixed = request_bucket(running_bs, query_len) if kind == "request" else None
        expected = self._hidden_states(eager, is_prefill, fixed)
        replayed = self._hidden_states(mode, is_prefill, fixed)
        difference = (replayed.double() - expected.double()).abs().nan_to_num(nan=float("inf"))
        return BucketCheck(kind, bucket, plan.num_tokens, float(difference.max()))

    def _hidden_states(
        self, mode: ForwardMode, is_prefill: bool, bucket: tuple[int, int] | None
    ) -> torch.Tensor:
        runner = self._runner
        runner.set_context(mode, is_prefill=is_prefill, bucket=bucket)
        try:
            _, hidden_states = runner.run_model(runner.batch.input_ids[: mode.running_tokens])
        finally:
            reset_forward_context()
        return hidden_states.clone()

    def _decode(self, num_seqs: int) -> StepPlan:
        """Sequences at random places of their answers."""
        runner, query_len = self._runner, self._runner.config.max_query_len
        num_seqs = min(num_seqs, self._num_blocks)
        longest = min(self._num_blocks // num_seqs, 4) * runner.layout.block_size
        longest = max(query_len, min(longest, runner.batch.max_seq_len))
        return self._plan(
            [(self._random.randint(0, longest - query_len), query_len) for _ in range(num_seqs)]
        )

    def _prompts(self, rows: int) -> StepPlan:
        longest = min(self._runner.batch.max_seq_len, self._runner.layout.capacity)
        return self._plan([(0, min(rows, longest))])

    def _plan(self, lengths: list[tuple[int, int]]) -> StepPlan:
        """Sequences of cached tokens and query rows, in blocks of their own."""
        plan, free = StepPlan(), 1
        for row, (computed, query_len) in enumerate(lengths):
            total = computed + query_len
            needed = -(-total // self._runner.layout.block_size)
            request = Request(
                request_id=f"verify-{row}",
                index=row,
                token_ids=[self._random.randrange(self._runner.vocab_size) for _ in range(total)],
                num_prompt=total,
                params=SamplingParams(),
                seed=0,
                stop_token_ids=frozenset(),
                max_total=total + 1,
                num_computed=computed,
                row=row,
                blocks=list(range(free, free + needed)),
            )
            free += needed
            plan.add(request, query_len)
        return plan

    def _fill_cache(self, seed: int) -> None:
        """Random contents, so that a row that reads another's cache shows."""
        torch.manual_seed(seed)
        for cache in self._runner.static_forward_context.kv_cache_data.values():
            for tensor in cache.tensors.values():
                if tensor.is_floating_point():
                    tensor.normal_()
