"""Any mix of good requests, bad ones, aborts and failing steps: right tokens, and every block comes back."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atom.runner import RequestError, SamplingParams, StepError

VOCAB, CACHE_TOKENS = 97, 40

PROMPTS = st.one_of(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
    st.lists(st.integers(0, 3), min_size=8, max_size=16),  # beginnings that meet
    st.just([]),
    st.just([VOCAB]),
    st.just([1] * (CACHE_TOKENS + 1)),
)
REQUESTS = st.lists(st.tuples(PROMPTS, st.integers(1, 30)), min_size=1, max_size=9)
KINDS = ["step"] * 4 + ["add", "add", "abort", "fail"]
EVENTS = st.lists(st.sampled_from(KINDS), max_size=60)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=REQUESTS, events=EVENTS, reuse=st.booleans(), data=st.data())
def test_every_answer_is_right_and_every_block_comes_back(
    make_engine, tiny_lm, requests, events, reuse, data
):
    engine = make_engine(
        num_kv_blocks=CACHE_TOKENS // 4,
        block_size=4,
        max_num_seqs=4,
        max_num_batched_tokens=13,
        enable_prefix_caching=reuse,
    )
    waiting, live, answers = list(requests), {}, {}

    def add():
        if waiting:
            prompt, max_tokens = waiting.pop()
            try:
                live[engine.add_request(prompt, SamplingParams(max_tokens=max_tokens))] = prompt, max_tokens
            except RequestError:
                assert prompt in ([], [VOCAB], [1] * (CACHE_TOKENS + 1))

    def step():
        for output in engine.step():
            if output.finished:
                answers[output.request_id] = output.token_ids

    for event in events:
        if event == "add":
            add()
        elif event == "abort" and live:
            request_id = data.draw(st.sampled_from(sorted(live)))
            live.pop(request_id)
            engine.abort(request_id)
        elif event == "fail" and engine.has_unfinished_requests():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(engine.runner, "run_model", _broken)
                with pytest.raises(StepError) as error:
                    engine.step()
            for request_id in error.value.request_ids:
                live.pop(request_id)
        else:
            step()
    while waiting:
        add()
    while engine.has_unfinished_requests():
        step()
    for request_id, (prompt, max_tokens) in live.items():
        length = min(max_tokens, CACHE_TOKENS + 1 - len(prompt))
        assert answers[request_id] == tiny_lm.dense_greedy(prompt, length)
    blocks = engine.scheduler.blocks
    assert blocks.num_free == blocks.num_blocks
    assert (engine.scheduler.num_running, engine.scheduler.num_waiting) == (0, 0)


def _broken(*args):
    raise RuntimeError("out of luck")
