"""Requests in, tokens out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from atom.runner.admission import Limits, admit
from atom.runner.detokenizer import Detokenizer
from atom.runner.errors import (
    DuplicateRequestError,
    PromptError,
    RequestError,
    SamplingParamsError,
    StepError,
)
from atom.runner.output import Answer, RequestOutput
from atom.runner.prompt import Prompt, as_prompts, encode_prompt, token_ids_of
from atom.runner.random_numbers import derived_seed
from atom.runner.sampling_params import SamplingParams
from atom.runner.startup import Started, start, start_from_model
from atom.runner.stats import EngineStats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from atom.config import Config
    from atom.runner.protocols import CausalLM, Progress
    from atom.runner.request import Request
    from atom.runner.tokenizer import Tokenizer


class LLMEngine:
    """A model that answers many requests at once.

    One thread uses it. A request that cannot run is refused when it comes in and concerns no other.
    """

    def __init__(self, config: Config, *, progress: Progress | None = None) -> None:
        """Load `config.model` and get ready: caches sized, graphs recorded.

        Raises:
            ModelLoadError: the path leads to no model.
            KVCacheError: memory leaves no room for a cache.
            ValueError: the model package's own error for a damaged checkpoint.
        """
        self._take(start(config, progress=progress))

    @classmethod
    def from_model(
        cls,
        config: Config,
        model: CausalLM,
        *,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: Sequence[int] = (),
        tokenizer: Tokenizer | None = None,
        progress: Progress | None = None,
    ) -> LLMEngine:
        """An engine around a model that is already there, on the device its config names."""
        engine = cls.__new__(cls)
        engine._take(
            start_from_model(
                config,
                model,
                vocab_size=vocab_size,
                max_model_len=max_model_len,
                eos_token_ids=eos_token_ids,
                tokenizer=tokenizer,
                progress=progress,
            )
        )
        return engine

    def _take(self, started: Started) -> None:
        self.config = started.config
        self.checkpoint = started.checkpoint
        """What was opened; None for an engine made from a model."""
        self.tokenizer = started.tokenizer
        self.limits: Limits = started.limits
        self.runner = started.runner
        self.scheduler = started.scheduler
        self._load_seconds = started.load_seconds
        self._capture_seconds = started.capture_seconds
        self._answers: dict[str, Answer] = {}
        self._undelivered: list[RequestOutput] = []
        self._arrivals = 0
        self._generated = 0
        self._reused = 0
        self._finished: Counter[str] = Counter()

    def add_request(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> str:
        """Take in a prompt: text, chat messages or token ids; returns the request's id.

        Raises:
            RequestError: it can never run, or its id belongs to a live request. Nothing else is concerned.
        """
        if request_id is None:
            request_id = self._fresh_id()
        elif not isinstance(request_id, str) or not request_id:
            raise RequestError(f"request_id={request_id!r}: must be a text that is not empty, or None")
        elif request_id in self._answers:
            raise DuplicateRequestError(f"request {request_id}: a request with that id is still alive")
        params = SamplingParams() if sampling_params is None else sampling_params
        if not isinstance(params, SamplingParams):
            raise SamplingParamsError(
                f"request {request_id}: sampling_params is a SamplingParams, not {type(params).__name__}"
            )
        index = self._arrivals
        text, token_ids = encode_prompt(prompt, self.tokenizer, request_id)
        seed = derived_seed(self.config.model_config.seed, index) if params.seed is None else params.seed
        request = admit(
            token_ids, params, self.limits, request_id=request_id, index=index, seed=seed & (2**64 - 1)
        )
        detokenizer = None
        if self.tokenizer is not None:
            detokenizer = Detokenizer(
                self.tokenizer, prompt_token_ids=request.token_ids, stop=tuple(params.stop)
            )
        elif params.stop:
            raise PromptError(f"request {request_id}: stop strings need a tokenizer; use stop_token_ids")
        self._arrivals += 1
        self._answers[request_id] = Answer(request, prompt=text, detokenizer=detokenizer)
        self.scheduler.add(request)
        return request_id

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has more to tell: requests that run or wait, or outputs made in a stream's steps."""
        return bool(self._answers or self._undelivered)

    def step(self) -> list[RequestOutput]:
        """Run one step; an output for each request that got a token in it.

        Raises:
            StepError: the forward raised. The requests of the step have ended; the others go on with the
                next.
        """
        sampled = self._run_step() if self._answers else []
        outputs, self._undelivered = self._undelivered, []
        for request, token_id in sampled:
            if request.num_generated == 0:
                self._reused += request.num_reused
            request.append(token_id)
            answer = self._answers[request.request_id]
            outputs.append(answer.output(num_new=1, delta=answer.spell()))
            if request.finish_reason is not None:
                self._finished[request.finish_reason] += 1
                del self._answers[request.request_id]
        self._generated += len(sampled)
        self.scheduler.remove_finished()
        return outputs

    def _run_step(self) -> list[tuple[Request, int]]:
        plan = self.scheduler.plan()
        try:
            sampled = self.runner.execute(plan)
        except Exception as error:
            ids = tuple(request.request_id for request in plan.requests)
            reason = f"a step of {len(ids)} requests failed: {type(error).__name__}: {error}"
            for request_id in ids:
                self._end(request_id, "error", reason)
            raise StepError(reason, ids) from error
        self.scheduler.computed(plan)
        return sampled

    def abort(self, request_id: str) -> None:
        """End a request without an answer; its blocks are free afterwards. An unknown id is none of ours:
        ignored."""
        if request_id in self._answers:
            self._end(request_id, "abort", "the request was aborted")

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answers in the order of the prompts. A prompt that cannot run has `finish_reason` "error"."""
        last: dict[int, RequestOutput] = {}
        for output in self.stream(prompts, sampling_params):
            if output.finished:
                last[output.index] = output
        return [last[index] for index in sorted(last)]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[RequestOutput]:
        """Outputs as they come, `delta` holding each one's new text; `index` is the place among the prompts.

        Leaving the loop early ends the prompts still running. A prompt whose request ends by `abort`, or in
        somebody else's step that fails, has `finish_reason` "error".

        Raises:
            ValueError: the numbers of prompts and sampling parameters differ.
            StepError: a step of this stream failed.
        """
        listed = as_prompts(prompts)
        params = self._params_for(listed, sampling_params)
        index_of: dict[str, int] = {}
        answers: dict[str, Answer] = {}
        try:
            for index, (prompt, wish) in enumerate(zip(listed, params, strict=True)):
                try:
                    request_id = self.add_request(prompt, wish)
                except RequestError as error:
                    yield self._refusal(index, prompt, error)
                else:
                    index_of[request_id], answers[request_id] = index, self._answers[request_id]
            while index_of:
                ours: list[RequestOutput] = []
                for output in self.step():
                    (ours if output.request_id in index_of else self._undelivered).append(output)
                # What ended outside of this loop's steps has no output of its own to wait for.
                told = {output.request_id for output in ours}
                ours += [answers[i].output() for i in index_of if i not in self._answers and i not in told]
                for output in ours:
                    output.index = index_of[output.request_id]
                    if output.finished:
                        del index_of[output.request_id]
                    yield output
        finally:
            for request_id in index_of:
                self.abort(request_id)

    def stats(self) -> EngineStats:
        """Figures since the engine was made, or since `reset_stats`."""
        compilation, log, blocks = self.config.compilation_config, self.runner.log, self.scheduler.blocks
        return EngineStats(
            level=int(compilation.level),
            mode=self.runner.mode.name,
            load_seconds=self._load_seconds,
            capture_seconds=self._capture_seconds,
            captured=self.runner.captured,
            prefill=log.phases["prefill"].copy(),
            decode=log.phases["decode"].copy(),
            replays=log.replays(),
            generated_tokens=self._generated,
            finished=dict(self._finished),
            preemptions=self.scheduler.num_preemptions,
            reused_prompt_tokens=self._reused,
            kv_blocks=blocks.num_blocks,
            kv_blocks_free=blocks.num_free,
            kv_block_size=blocks.block_size,
            kv_bytes=self.runner.layout.nbytes,
            running=self.scheduler.num_running,
            waiting=self.scheduler.num_waiting,
        )

    def reset_stats(self) -> None:
        """Count steps and tokens from here on, for instance after a warm-up."""
        self.runner.log.clear()
        self._generated = self._reused = self.scheduler.num_preemptions = 0
        self._finished.clear()

    def _params_for(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or SamplingParams()] * len(prompts)
        if not isinstance(params, list | tuple):
            raise SamplingParamsError(
                f"sampling_params is a SamplingParams or a list of them, not {type(params).__name__}"
            )
        if len(params) != len(prompts):
            raise ValueError(
                f"{len(params)} sampling parameters for {len(prompts)} prompts: give one for all or "
                "one for each"
            )
        return list(params)

    def _refusal(self, index: int, prompt: Prompt, error: RequestError) -> RequestOutput:
        self._finished["error"] += 1
        token_ids = token_ids_of(prompt)
        return RequestOutput(
            index=index,
            request_id=f"refused-{index}",
            prompt=prompt if isinstance(prompt, str) else None,
            finish_reason="error",
            error=str(error),
            _tokens=token_ids,
            _start=len(token_ids),
            _end=len(token_ids),
            _pieces=None if self.tokenizer is None else [],
        )

    def _end(self, request_id: str, kind: str, reason: str) -> None:
        answer = self._answers.pop(request_id)
        answer.error = reason
        self.scheduler.finish(answer.request, "error")
        self._finished[kind] += 1

    def _fresh_id(self) -> str:
        number = self._arrivals
        while str(number) in self._answers:
            number += 1
        return str(number)
