"""The order of a step: inputs, dispatch, forward, logits, tokens."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import torch

from atom.graphs.dispatch import ForwardMode
from atom.graphs.forward_context import (
    Context,
    StaticForwardContext,
    get_forward_context,
    reset_forward_context,
    set_forward_context,
)
from atom.graphs.region_graph import ReqGraph, request_bucket
from atom.runner.capture import GraphCapture
from atom.runner.input_batch import InputBatch
from atom.runner.kv_cache import KVCacheLayout, allocate_kv_cache
from atom.runner.level_one import trace_forwards
from atom.runner.sampler import Sampler
from atom.runner.stats import StepLog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atom.config import Config, CUDAGraphMode
    from atom.runner.protocols import CausalLM, Progress
    from atom.runner.request import Request
    from atom.runner.scheduler import StepPlan


class ModelRunner:
    """Runs steps of a model: owns its caches, its input buffers and its graphs."""

    def __init__(
        self,
        config: Config,
        model: CausalLM,
        *,
        device: torch.device,
        vocab_size: int,
        max_model_len: int,
    ) -> None:
        """A runner without caches: `allocate_kv_cache` comes before its first step."""
        self.config = config
        self.model = model
        self.device = device
        self.vocab_size = vocab_size
        self.enforce_eager = config.enforce_eager
        self._data_parallel = config.parallel_config.data_parallel_size > 1
        self.capture_sizes = list(config.capture_sizes or [])
        trace_forwards(model, config.compilation_config.level)
        self.attn_metadata_builder = model.attn_metadata_builder
        self.static_forward_context = StaticForwardContext(no_compile_layers=dict(model.attention_layers))
        block_size = config.kv_cache_config.block_size
        self.batch = InputBatch(
            max_rows=self._max_rows(),
            max_seqs=max([config.max_num_seqs, *self.capture_sizes]),
            num_request_rows=config.max_num_seqs,
            max_blocks=-(-max_model_len // block_size),
            block_size=block_size,
            device=device,
        )
        self.sampler = Sampler(config.max_num_seqs, vocab_size, device)
        self.req_graph = ReqGraph()
        self.forward_vars: dict[str, torch.Tensor] = {}
        """Tensors at fixed addresses beside the inputs; `"outputs"` holds what a request graph's forward
        returns."""
        self.log = StepLog()
        self._capture = GraphCapture(self)

    @property
    def mode(self) -> CUDAGraphMode:
        """The run's graph mode."""
        mode = self.config.compilation_config.cudagraph_mode
        assert mode is not None  # Config settles it
        return mode

    @property
    def _tr_hybrid_active(self) -> bool:
        return self.mode.uses_tr_hybrid()

    def _max_rows(self) -> int:
        prefill = self.model.prefill_token_buckets(self.config)
        decode = [bs * self.config.max_query_len for bs in self.capture_sizes]
        return max([self.config.max_num_batched_tokens, *prefill, *decode])

    def allocate_kv_cache(self, layout: KVCacheLayout) -> None:
        """Make the cache tensors. Recordings made before read other tensors and must be gone."""
        model = self.model
        self.layout = layout
        self.static_forward_context.kv_cache_data = allocate_kv_cache(
            model.kv_cache_spec(), layout, model.attention_layers, self.device
        )

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> list[tuple[Request, int]]:
        """Run a step and return the requests that got a token, with the token.

        A request in the middle of its prompt gets none. The forward context is empty afterwards, also when
        the forward raises.
        """
        start = time.perf_counter()
        batch = self.batch
        wanted = [plan.requests[i] for i in batch.fill(plan)]
        mode = self.decide(is_prefill=plan.is_prefill)
        batch.send(mode.running_bs, mode.running_tokens)
        self.set_context(mode, is_prefill=plan.is_prefill)
        try:
            logits, _ = self.run_model(batch.input_ids[: mode.running_tokens])
        finally:
            reset_forward_context()
        token_ids: list[int] = self.sampler.sample(logits, wanted).tolist() if wanted else []
        self.log.add(
            mode,
            is_prefill=plan.is_prefill,
            tokens=plan.num_tokens,
            seconds=time.perf_counter() - start,
        )
        return list(zip(wanted, token_ids, strict=True))

    def decide(self, *, is_prefill: bool) -> ForwardMode:
        """What the step in the input buffers replays, from the buckets there are."""
        batch = self.batch
        return ForwardMode.decide(
            mode=self.mode,
            is_prefill=is_prefill,
            batch_size=batch.num_seqs,
            num_tokens=batch.num_tokens,
            max_seqlen_q=batch.max_seqlen_q,
            enforce_eager=self.enforce_eager,
            request_sizes=self._capture.request_sizes(batch.max_seqlen_q),
            token_sizes=self._capture.token_sizes(is_prefill=is_prefill),
            enable_tbo=self.config.enable_tbo,  # type: ignore[arg-type]  # Config allows just these words
        )

    def set_context(
        self,
        mode: ForwardMode,
        *,
        is_prefill: bool,
        bucket: tuple[int, int] | None = None,
        tr_graph: Any = None,
    ) -> None:
        """Make the forward context of the step in the input buffers; `bucket` forces the bucket-fixed
        metadata."""
        batch = self.batch
        if bucket is None and mode.kind == "request":
            bucket = request_bucket(mode.running_bs, batch.max_seqlen_q)
        metadata = self.attn_metadata_builder.build(
            batch, running_bs=mode.running_bs, running_tokens=mode.running_tokens, request_bucket=bucket
        )
        context = Context(
            positions=batch.positions[: mode.running_tokens],
            is_prefill=is_prefill,
            batch_size=batch.num_seqs,
            running_bs=mode.running_bs,
            running_tokens=mode.running_tokens,
        )
        set_forward_context(
            metadata,
            self.config,
            context,
            static=self.static_forward_context,
            forward_mode=mode,
            tr_graph=tr_graph,
            running_tokens_per_dp_rank=mode.running_tokens if self._data_parallel else None,
        )

    def run_model(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the forward that the context's `ForwardMode` settled on; it obeys and decides nothing.

        Returns logits float32 `[sampled sequences, vocab]` and the live rows' hidden states `[num_tokens,
        hidden]`. Both are valid until the next replay in the pool.
        """
        forward_context = get_forward_context()
        context, mode = forward_context.context, forward_context.forward_mode
        assert context is not None
        assert mode is not None
        if mode.kind == "request":
            metadata = forward_context.attn_metadata
            key = request_bucket(context.running_bs, metadata.max_seqlen_q)  # type: ignore[union-attr]
            self._decode_graph(key)()
            hidden_states = self.forward_vars["outputs"]
        else:
            # Eager, or the model's own token graph: its recording unit replays where the context says
            # "replay".
            hidden_states = self.model(input_ids, context.positions)
        hidden_states = hidden_states[: self.batch.num_tokens]
        return self._logits(hidden_states), hidden_states

    def _logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        batch = self.batch
        if batch.num_logits == 0:
            return hidden_states.new_empty((0, self.vocab_size), dtype=torch.float32)
        if batch.num_logits < batch.num_tokens:
            hidden_states = hidden_states.index_select(0, batch.logits_rows)
        return self.model.compute_logits(hidden_states)

    def _decode_graph(self, key: tuple[int, int]) -> Callable[[], Any]:
        """The replay of a request bucket."""
        return functools.partial(self.req_graph.replay, key)

    def forward(self, running_tokens: int) -> torch.Tensor:
        """Hidden states `[running_tokens, hidden]` of the first rows of the input buffers."""
        return self.model(self.batch.input_ids[:running_tokens], self.batch.positions[:running_tokens])

    def full_forward(self, running_tokens: int) -> torch.Tensor:
        """The forward that a request graph records: from the input buffers into `forward_vars["outputs"]`."""
        outputs = self.forward_vars["outputs"][:running_tokens]
        return outputs.copy_(self.forward(running_tokens))

    @torch.inference_mode()
    def capture_cudagraph(self, progress: Progress | None = None) -> tuple[float, list[int]]:
        """Record every bucket of the run's mode; returns seconds and the batch sizes, ascending.

        Raises:
            CaptureError: a bucket could not be recorded; none is left half recorded.
        """
        return self._capture.run(progress)

    @property
    def captured(self) -> dict[str, list[int]]:
        """Recorded buckets: `"request"` in sequences, `"decode"` and `"prefill"` in rows."""
        return self._capture.sizes()

    @torch.inference_mode()
    def warm_up(self, query_lens: Sequence[int], *, is_prefill: bool) -> None:
        """Run an eager step of sequences that lie in block 0, and every way of sampling from it."""
        num_seqs, rows = len(query_lens), sum(query_lens)
        self.batch.fill_dummy(query_lens)
        self.batch.send(num_seqs, rows)
        mode = ForwardMode("eager", num_seqs, rows, token_graph=False, ubatch_split_bs=None, reason="warm-up")
        self.set_context(mode, is_prefill=is_prefill)
        try:
            logits, _ = self.run_model(self.batch.input_ids[:rows])
        finally:
            reset_forward_context()
        self.sampler.warm_up(logits)

    @torch.inference_mode()
    def measure_graph_bytes(self) -> int:
        """Device bytes that recording will take; see `GraphCapture.measure_bytes`."""
        return self._capture.measure_bytes()
