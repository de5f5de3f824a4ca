"""Recording every bucket before the first request.

Largest first: what a recording allocates is free again for the next one, so a ladder costs what its largest
bucket costs.
"""

from __future__ import annotations

import functools
import logging
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atom.graphs.dispatch import ForwardMode
from atom.graphs.errors import GraphError
from atom.graphs.forward_context import reset_forward_context
from atom.graphs.region_graph import ReqGraph, TokenGraph, request_bucket, token_graphs
from atom.runner.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atom.runner.model_runner import ModelRunner
    from atom.runner.protocols import Progress

_log = logging.getLogger(__name__)
_WHAT = "Recording graphs"


class GraphCapture:
    """The capture loop of a runner, and what came out of it."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._token_sizes: dict[bool, list[int]] = {}
        self._request_sizes: dict[int, list[int]] = {}

    def request_sizes(self, max_seqlen_q: int) -> list[int]:
        """Batch sizes of the request graphs for sequences of that many rows, ascending."""
        return self._request_sizes.get(max_seqlen_q, [])

    def token_sizes(self, *, is_prefill: bool) -> list[int]:
        """Token buckets of a phase, in rows, ascending: those that every recording unit has."""
        return self._token_sizes.get(is_prefill, [])

    def sizes(self) -> dict[str, list[int]]:
        """Everything recorded: `"request"` in sequences, `"decode"` and `"prefill"` in rows."""
        found = {
            "request": self.request_sizes(self._query_len),
            "decode": self.token_sizes(is_prefill=False),
            "prefill": self.token_sizes(is_prefill=True),
        }
        return {kind: list(sizes) for kind, sizes in found.items() if sizes}

    def run(self, progress: Progress | None) -> tuple[float, list[int]]:
        """Record every bucket of the run's mode; returns seconds and the batch sizes, ascending.

        Raises:
            CaptureError: a bucket failed; it says which and why, and nothing of it is left.
        """
        runner = self._runner
        if runner.enforce_eager or not runner.capture_sizes:
            return 0.0, []
        if not self._token_sizes and any(graph.recordings() for graph in self._token_graphs()):
            raise CaptureError(
                "this model was recorded by another runner, whose buffers its token graphs read: "
                "build a new one"
            )
        began = time.perf_counter()
        jobs = self._jobs()
        on_rank_0 = runner.config.parallel_config.rank == 0
        for done, (name, record) in enumerate(jobs):
            if progress is not None and on_rank_0:
                progress(_WHAT, done, len(jobs))
            try:
                record()
            except GraphError as error:
                raise CaptureError(f"{name}: {error}") from error
            finally:
                reset_forward_context()
            self._synchronize()
        if progress is not None and on_rank_0:
            progress(_WHAT, len(jobs), len(jobs))
        self._count()
        return time.perf_counter() - began, sorted(runner.capture_sizes)

    def _jobs(self) -> list[tuple[str, Callable[[], None]]]:
        """What to record, largest first, each with a name for errors."""
        runner, query_len = self._runner, self._query_len
        capture_sizes = sorted(runner.capture_sizes, reverse=True)
        assert capture_sizes[0] <= runner.config.max_num_seqs  # Config refuses anything else
        hybrid = runner._tr_hybrid_active
        prefill = runner.model.prefill_token_buckets(runner.config) if hybrid else []
        jobs: list[tuple[int, str, Callable[[], None]]] = [
            (rows, f"prefill bucket {rows}", functools.partial(self._record_prefill, rows))
            for rows in prefill
        ]
        record_decode = self._record_hybrid if hybrid else self._record_request
        jobs += [
            (bs * query_len, f"decode bucket {bs}", functools.partial(record_decode, bs))
            for bs in capture_sizes
        ]
        jobs.sort(key=lambda job: job[0], reverse=True)
        return [(name, record) for _, name, record in jobs]

    def _record_prefill(self, rows: int) -> None:
        self._record_tokens(self._prompts(rows), is_prefill=True)

    def _record_hybrid(self, bs: int) -> None:
        self._record_tokens([self._query_len] * bs, is_prefill=False)
        graphs = self._token_graphs()
        breaks = any(recording.regions for graph in graphs for recording in graph.recordings().values())
        if breaks and all(graph.bucket_fixed for graph in graphs):
            # Nothing in the units needs the host at a fixed bucket: uniform decode can do without the breaks.
            self._record_request(bs)

    def _record_tokens(self, query_lens: Sequence[int], *, is_prefill: bool) -> None:
        """Record the units' token graphs at `sum(query_lens)` rows."""
        self._set_dummy(query_lens, is_prefill=is_prefill)
        self._runner.forward(sum(query_lens))
        self._synchronize()
        self._set_dummy(query_lens, is_prefill=is_prefill, tr_graph="record")
        self._runner.forward(sum(query_lens))

    def _record_request(self, bs: int, graph: ReqGraph | None = None) -> None:
        """Record the whole forward of `bs` sequences as a request graph."""
        runner, query_len = self._runner, self._query_len
        bucket = request_bucket(bs, query_len)
        self._set_dummy([query_len] * bs, is_prefill=False, bucket=bucket)
        hidden_states = runner.forward(bs * query_len)
        if "outputs" not in runner.forward_vars:
            rows = max(runner.capture_sizes) * query_len
            runner.forward_vars["outputs"] = hidden_states.new_zeros((rows, *hidden_states.shape[1:]))
        del hidden_states
        self._synchronize()
        (graph or runner.req_graph).record(lambda: runner.full_forward(bs * query_len))

    def measure_bytes(self) -> int:
        """Device bytes that recording all buckets will take, found by recording the largest one and dropping
        it.

        It is recorded twice: the second time shows what a recording costs beyond the memory that all share.
        Never negative: what somebody else gave back meanwhile is not ours to count on.

        Raises:
            CaptureError: it failed.
        """
        runner = self._runner
        jobs = [] if runner.enforce_eager or not runner.capture_sizes else self._jobs()
        if not jobs:
            return 0
        kept: list[Any] = []
        try:
            first, further = (max(0, self._taken_by_trial(kept)) for _ in range(2))
        except GraphError as error:
            raise CaptureError(str(error)) from error
        finally:
            kept.clear()
            reset_forward_context()
        torch.cuda.empty_cache()
        return first + (len(jobs) - 1) * further

    def _taken_by_trial(self, kept: list[Any]) -> int:
        runner, bs = self._runner, max(self._runner.capture_sizes)
        self._synchronize()
        torch.cuda.empty_cache()
        before, _ = torch.cuda.mem_get_info(runner.device)
        requests, tokens = ReqGraph(), TokenGraph(runner.model)
        if runner._tr_hybrid_active:
            rows = max([bs * self._query_len, *runner.model.prefill_token_buckets(runner.config)])
            self._set_dummy(self._prompts(rows), is_prefill=True)
            runner.forward(rows)
            tokens.record(runner.batch.input_ids[:rows], runner.batch.positions[:rows])
        if not runner._tr_hybrid_active or tokens.bucket_fixed:
            self._record_request(bs, requests)
        kept += [requests, tokens]
        self._synchronize()
        torch.cuda.empty_cache()
        after, _ = torch.cuda.mem_get_info(runner.device)
        return before - after

    def _set_dummy(
        self,
        query_lens: Sequence[int],
        *,
        is_prefill: bool,
        bucket: tuple[int, int] | None = None,
        tr_graph: Any = None,
    ) -> None:
        """Inputs and context of a step whose sequences lie in block 0."""
        runner, num_seqs, rows = self._runner, len(query_lens), sum(query_lens)
        runner.batch.fill_dummy(query_lens)
        runner.batch.send(num_seqs, rows)
        mode = ForwardMode(
            "eager", num_seqs, rows, token_graph=False, ubatch_split_bs=None, reason="recording"
        )
        runner.set_context(mode, is_prefill=is_prefill, bucket=bucket, tr_graph=tr_graph)

    def _count(self) -> None:
        graphs = self._token_graphs()
        for is_prefill, phase in ((True, "prefill"), (False, "decode")):
            each = [set(graph.captured_sizes(phase)) for graph in graphs]  # type: ignore[arg-type]
            self._token_sizes[is_prefill] = sorted(set.intersection(*each)) if each else []
        query_len = self._query_len
        self._request_sizes = {query_len: self._runner.req_graph.captured_sizes(query_len - 1)}
        if self._runner._tr_hybrid_active and not graphs:
            _log.warning(
                "no module of this model is marked @token_graph: graph mode TR_HYBRID recorded nothing"
            )

    def _prompts(self, rows: int) -> list[int]:
        """As few sequences as possible that have `rows` rows together."""
        longest = self._runner.batch.max_seq_len
        return [min(longest, rows - start) for start in range(0, rows, longest)]

    @property
    def _query_len(self) -> int:
        return self._runner.config.max_query_len

    def _token_graphs(self) -> list[TokenGraph]:
        model = self._runner.model
        return list(token_graphs(model).values()) if isinstance(model, nn.Module) else []

    def _synchronize(self) -> None:
        if self._runner.device.type == "cuda":
            torch.cuda.synchronize(self._runner.device)
