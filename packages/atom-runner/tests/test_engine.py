"""Requests in, tokens out: the same tokens whatever runs beside a request."""

from __future__ import annotations

import pytest

from atom.runner import (
    DuplicateRequestError,
    PromptError,
    RequestError,
    SamplingParams,
    SamplingParamsError,
    StepError,
)

GREEDY = SamplingParams(max_tokens=24)


def ids(outputs):
    return [output.token_ids for output in outputs]


def assert_all_blocks_free(engine):
    stats = engine.stats()
    assert stats.kv_blocks_free == stats.kv_blocks
    assert (stats.running, stats.waiting) == (0, 0)


@pytest.mark.parametrize(
    ("settings", "preempts"),
    [
        ({"max_num_seqs": 1}, False),
        ({"max_num_seqs": 8, "num_kv_blocks": 256}, False),
        ({"max_num_seqs": 3, "max_num_batched_tokens": 5}, False),
        ({"num_kv_blocks": 17}, True),
        ({"num_kv_blocks": 17, "enable_prefix_caching": False, "max_num_batched_tokens": 7}, True),
        ({"block_size": 1, "num_kv_blocks": 65}, True),
        ({"enable_chunked_prefill": False, "max_model_len": 128, "max_num_batched_tokens": 128}, False),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_greedy_answers_equal_a_run_without_cache(make_engine, tiny_lm, prompts, settings, preempts):
    engine = make_engine(**settings)
    outputs = engine.generate(prompts, GREEDY)
    assert ids(outputs) == [tiny_lm.dense_greedy(prompt, GREEDY.max_tokens) for prompt in prompts]
    assert [output.index for output in outputs] == list(range(len(prompts)))
    assert {output.finish_reason for output in outputs} == {"length"}
    assert (engine.stats().preemptions > 0) == preempts
    assert_all_blocks_free(engine)


def test_prefix_reuse_changes_no_token(make_engine, prompts):
    shared = prompts[-1][:20]
    family = [shared + prompt for prompt in prompts[:6]]
    with_reuse, without = make_engine(num_kv_blocks=128), make_engine(enable_prefix_caching=False)
    expected = ids(without.generate(family, GREEDY))
    assert ids(with_reuse.generate(family, GREEDY)) == expected
    assert ids(with_reuse.generate(family, GREEDY)) == expected
    # The second round finds all full blocks of each prompt but the one its last token lies in.
    assert with_reuse.stats().reused_prompt_tokens >= sum((len(p) - 1) // 4 * 4 for p in family)
    assert without.stats().reused_prompt_tokens == 0
    assert_all_blocks_free(with_reuse)


def test_a_stop_token_ends_the_answer_and_is_its_last_token(make_engine, tiny_lm, prompts):
    prompt = prompts[5]
    answer = tiny_lm.dense_greedy(prompt, 24)
    stop = answer[7]
    engine = make_engine(eos_token_ids=(stop,))
    expected = answer[: answer.index(stop) + 1]
    [by_eos] = engine.generate([prompt], GREEDY)
    assert (by_eos.token_ids, by_eos.finish_reason) == (expected, "stop")
    [ignored] = engine.generate([prompt], SamplingParams(max_tokens=24, ignore_eos=True))
    assert (ignored.token_ids, ignored.finish_reason) == (answer, "length")
    [named] = engine.generate([prompt], SamplingParams(max_tokens=24, ignore_eos=True, stop_token_ids=[stop]))
    assert (named.token_ids, named.finish_reason) == (expected, "stop")


def test_outputs_do_not_change_when_the_request_goes_on(make_engine, prompts):
    engine = make_engine()
    seen = list(engine.stream([prompts[3]], SamplingParams(max_tokens=5)))
    assert [len(output.token_ids) for output in seen] == [1, 2, 3, 4, 5]
    assert [output.new_token_ids for output in seen] == [[token] for token in seen[-1].token_ids]
    assert [output.finished for output in seen] == [False] * 4 + [True]
    assert all(output.prompt_token_ids == prompts[3] for output in seen)


def test_leaving_a_stream_early_frees_its_blocks(make_engine, prompts):
    engine = make_engine()
    stream = engine.stream(prompts, GREEDY)
    for _ in range(9):
        next(stream)
    assert engine.stats().kv_blocks_free < engine.stats().kv_blocks
    stream.close()
    assert not engine.has_unfinished_requests()
    assert_all_blocks_free(engine)


def test_abort_concerns_no_other_request(make_engine, tiny_lm, prompts):
    engine = make_engine(num_kv_blocks=40)
    request_ids = [engine.add_request(prompt, GREEDY) for prompt in prompts]
    done = {}
    for number in range(200):
        if number == 2:
            engine.abort(request_ids[0])  # running
            engine.abort(request_ids[-1])  # waiting
            engine.abort("nobody's")
        for output in engine.step():
            if output.finished:
                done[output.request_id] = output.token_ids
        if not engine.has_unfinished_requests():
            break
    kept = range(1, len(prompts) - 1)
    assert done == {request_ids[i]: tiny_lm.dense_greedy(prompts[i], 24) for i in kept}
    assert_all_blocks_free(engine)


class TestRequestsThatCannotRun:
    """Each is refused at once, and its neighbours get the tokens they would have had alone."""

    @pytest.mark.parametrize(
        ("prompt", "message"),
        [
            ([], "the prompt is empty"),
            ([1] * 64, "the prompt has 64 tokens; with max_model_len=64 the most is 63"),
            ([1] * 65, "the prompt has 65 tokens"),
            ([1] * 41, "the whole KV cache holds 40"),
            ([5, 97], "prompt token 1 is 97; the vocabulary has ids 0 to 96"),
            ([-1], "prompt token 0 is -1"),
            ([1.5], "prompt token 0 is 1.5, not a token id"),
            ("text", "this checkpoint has no tokenizer"),
            ([{"role": "user", "content": "hi"}], "this checkpoint has no tokenizer"),
            (None, "not NoneType"),
        ],
    )
    def test_a_bad_prompt_is_one_error_row(self, make_engine, tiny_lm, prompts, prompt, message):
        engine = make_engine(max_model_len=64, num_kv_blocks=10)
        with pytest.raises(PromptError, match="request mine: ") as caught:
            engine.add_request(prompt, request_id="mine")
        assert message in str(caught.value)
        good = prompts[:3]
        outputs = engine.generate([good[0], prompt, *good[1:]], SamplingParams(max_tokens=8))
        assert outputs[1].finish_reason == "error"
        assert message in outputs[1].error
        assert outputs[1].token_ids == []
        expected = [tiny_lm.dense_greedy(g, 8) for g in good]
        assert [o.token_ids for i, o in enumerate(outputs) if i != 1] == expected
        assert_all_blocks_free(engine)

    def test_a_prompt_one_short_of_the_context_gets_one_token(self, make_engine, tiny_lm):
        engine = make_engine(max_model_len=64)
        [output] = engine.generate([[1] * 63], GREEDY)
        assert (output.token_ids, output.finish_reason) == (tiny_lm.dense_greedy([1] * 63, 1), "length")
        assert output.detail == "the sequence reached max_model_len=64"

    def test_most_of_the_context_does_not_fit_half_of_it_in_the_cache(self, make_engine, tiny_lm, prompts):
        engine = make_engine(max_model_len=100, num_kv_blocks=12, block_size=4)  # 48 tokens
        big, *rest = engine.generate([[3] * 90, *prompts[:3]], SamplingParams(max_tokens=6))
        assert big.finish_reason == "error"
        assert "90 tokens and the whole KV cache holds 48" in big.error
        assert ids(rest) == [tiny_lm.dense_greedy(p, 6) for p in prompts[:3]]

    @pytest.mark.parametrize("company", [0, 2])
    def test_an_answer_that_outgrows_the_cache_ends_with_a_reason(
        self, make_engine, tiny_lm, prompts, company
    ):
        engine = make_engine(num_kv_blocks=5, block_size=4, enable_prefix_caching=False)  # 20 tokens
        prompt, neighbours = prompts[6][:10], prompts[2 : 2 + company]
        outputs = engine.generate(
            [prompt, *neighbours], [SamplingParams(max_tokens=100), *[SamplingParams(max_tokens=9)] * company]
        )
        # 20 tokens lie in the cache, and the last one that is sampled need not.
        assert outputs[0].token_ids == tiny_lm.dense_greedy(prompt, 11)
        assert outputs[0].finish_reason == "length"
        assert outputs[0].detail == "the sequence filled the whole KV cache of 20 tokens"
        assert ids(outputs[1:]) == [tiny_lm.dense_greedy(p, 9) for p in neighbours]
        assert_all_blocks_free(engine)

    def test_an_id_that_is_alive_is_refused_to_the_newcomer_only(self, make_engine, tiny_lm, prompts):
        engine = make_engine()
        engine.add_request(prompts[4], SamplingParams(max_tokens=6), request_id="a")
        with pytest.raises(DuplicateRequestError, match="request a: a request with that id is still alive"):
            engine.add_request(prompts[5], request_id="a")
        tokens = []
        while engine.has_unfinished_requests():
            tokens += [token for output in engine.step() for token in output.new_token_ids]
        assert tokens == tiny_lm.dense_greedy(prompts[4], 6)
        # The id of a finished request is free again.
        assert engine.add_request(prompts[5], SamplingParams(max_tokens=1), request_id="a") == "a"
        [output] = engine.step()
        assert output.token_ids == tiny_lm.dense_greedy(prompts[5], 1)

    def test_ids_of_its_own_making_avoid_those_given(self, make_engine):
        engine = make_engine()
        engine.add_request([1], request_id="1")
        assert len({engine.add_request([1]), engine.add_request([1]), "1"}) == 3

    def test_a_stop_token_outside_the_vocabulary_is_refused(self, make_engine):
        with pytest.raises(SamplingParamsError, match="stop_token_ids holds 97; the vocabulary ends at 96"):
            make_engine().add_request([1], SamplingParams(stop_token_ids=[97]))

    def test_a_stop_string_without_tokenizer_is_refused(self, make_engine):
        with pytest.raises(PromptError, match="stop strings need a tokenizer"):
            make_engine().add_request([1], SamplingParams(stop=["x"]))


def test_a_step_that_fails_ends_its_requests_and_leaves_the_engine_usable(
    make_engine, tiny_lm, prompts, monkeypatch
):
    engine = make_engine(max_num_seqs=2)
    for prompt in prompts[:4]:
        engine.add_request(prompt, SamplingParams(max_tokens=4))
    engine.step()

    def broken(*args, **kwargs):
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(tiny_lm, "compute_logits", broken)
        with pytest.raises(
            StepError, match="a step of 2 requests failed: RuntimeError: out of luck"
        ) as error:
            engine.step()
    assert error.value.request_ids == ("0", "1")
    done = {}
    while engine.has_unfinished_requests():
        done |= {output.request_id: output.token_ids for output in engine.step() if output.finished}
    assert done == {str(i): tiny_lm.dense_greedy(prompts[i], 4) for i in (2, 3)}
    assert_all_blocks_free(engine)


def test_generate_beside_other_requests_keeps_their_outputs(make_engine, tiny_lm, prompts):
    engine = make_engine()
    engine.add_request(prompts[1], SamplingParams(max_tokens=3), request_id="other")
    [ours] = engine.generate([prompts[2]], SamplingParams(max_tokens=6))
    assert ours.token_ids == tiny_lm.dense_greedy(prompts[2], 6)
    others = engine.step()
    assert {output.request_id for output in others} == {"other"}
    assert others[-1].token_ids == tiny_lm.dense_greedy(prompts[1], 3)


def test_a_loop_over_steps_is_told_of_outputs_made_in_a_streams_steps(make_engine, tiny_lm, prompts):
    engine = make_engine()
    engine.add_request(prompts[1], SamplingParams(max_tokens=3), request_id="other")
    engine.generate([prompts[2]], SamplingParams(max_tokens=6))
    told = []
    while engine.has_unfinished_requests():
        told += engine.step()
    assert told[-1].finished
    assert told[-1].token_ids == tiny_lm.dense_greedy(prompts[1], 3)


def test_outputs_of_others_outlive_a_failed_step(make_engine, tiny_lm, prompts, monkeypatch):
    engine = make_engine()
    engine.add_request(prompts[1], SamplingParams(max_tokens=2), request_id="other")
    stream = engine.stream([prompts[2]], SamplingParams(max_tokens=9))
    for _ in range(3):
        next(stream)
    with monkeypatch.context() as patch:
        patch.setattr(tiny_lm, "compute_logits", None)
        with pytest.raises(StepError):
            next(stream)
    assert engine.step()[-1].token_ids == tiny_lm.dense_greedy(prompts[1], 2)
    assert_all_blocks_free(engine)


def test_a_stream_whose_request_is_aborted_says_so_and_ends(make_engine, tiny_lm, prompts):
    engine = make_engine()
    last = {}
    for output in engine.stream(prompts[:2], SamplingParams(max_tokens=5)):
        last[output.index] = output
        if output.index == 0 and not output.finished:
            engine.abort(output.request_id)
    assert (last[0].finish_reason, last[0].error) == ("error", "the request was aborted")
    assert last[0].token_ids == tiny_lm.dense_greedy(prompts[0], 1)
    assert last[1].token_ids == tiny_lm.dense_greedy(prompts[1], 5)
    assert_all_blocks_free(engine)


def test_a_stream_ends_with_an_error_where_another_ones_step_failed(
    make_engine, tiny_lm, prompts, monkeypatch
):
    engine = make_engine()
    first, second = (engine.stream([p], SamplingParams(max_tokens=9)) for p in prompts[:2])
    next(first)
    next(second)
    with monkeypatch.context() as patch:
        patch.setattr(tiny_lm, "compute_logits", None)
        with pytest.raises(StepError):
            next(first)
    *_, last = second
    assert last.finish_reason == "error"
    assert "a step of 2 requests failed: TypeError" in last.error
    assert_all_blocks_free(engine)


@pytest.mark.parametrize("request_id", [5, "", b"a", ["a"]])
def test_an_id_that_is_no_text_is_refused(make_engine, request_id):
    engine = make_engine()
    with pytest.raises(RequestError, match=r"request_id=.* must be a text"):
        engine.add_request([1], request_id=request_id)
    assert not engine.has_unfinished_requests()


def test_what_is_no_sampling_params_is_refused(make_engine):
    engine = make_engine()
    with pytest.raises(SamplingParamsError, match="is a SamplingParams, not dict"):
        engine.add_request([1], {"max_tokens": 2})
    with pytest.raises(SamplingParamsError, match="or a list of them, not dict"):
        engine.generate([[1]], {"max_tokens": 2})
    [refused] = engine.generate([[1]], [{"max_tokens": 2}])
    assert refused.finish_reason == "error"
    assert not engine.has_unfinished_requests()


def test_one_prompt_is_a_list_of_one(make_engine, tiny_lm, prompts):
    engine = make_engine()
    assert ids(engine.generate(prompts[2], GREEDY)) == [tiny_lm.dense_greedy(prompts[2], 24)]
    assert engine.generate([]) == []


def test_numbers_of_prompts_and_parameters_must_agree(make_engine):
    with pytest.raises(ValueError, match="1 sampling parameters for 2 prompts"):
        make_engine().generate([[1], [2]], [GREEDY])


def test_seeded_answers_do_not_depend_on_company_or_preemption(make_engine, prompts):
    params = [
        SamplingParams(temperature=1.0, seed=11, max_tokens=20),
        SamplingParams(temperature=0.8, top_k=20, seed=12, max_tokens=20),
        SamplingParams(temperature=0.9, top_p=0.8, seed=13, max_tokens=20),
        SamplingParams(temperature=1.2, min_p=0.05, top_k=50, seed=14, max_tokens=20),
        SamplingParams(temperature=0.7, repetition_penalty=1.3, seed=15, max_tokens=20),
        SamplingParams(repetition_penalty=1.3, max_tokens=20),
    ]
    alone = [make_engine().generate([p], w)[0].token_ids for p, w in zip(prompts, params, strict=False)]
    engine = make_engine(num_kv_blocks=9)
    assert ids(engine.generate(prompts[:6], params)) == alone
    assert engine.stats().preemptions > 0
    reverse = make_engine(max_num_batched_tokens=3).generate(prompts[:6][::-1], params[::-1])
    assert ids(reverse)[::-1] == alone


def test_requests_without_a_seed_follow_the_run_and_differ(make_engine):
    wish = SamplingParams(temperature=2.0, max_tokens=12)
    first, second = (ids(make_engine().generate([[3]] * 4, wish)) for _ in range(2))
    assert first == second
    assert len({tuple(answer) for answer in first}) == 4


def test_stats_count_steps_tokens_and_reasons(make_engine, prompts):
    engine = make_engine()
    engine.generate([prompts[4], prompts[5]], SamplingParams(max_tokens=5))
    stats = engine.stats()
    assert (stats.prefill.steps, stats.prefill.tokens) == (1, len(prompts[4]) + len(prompts[5]))
    assert (stats.decode.steps, stats.decode.tokens) == (4, 8)
    assert stats.generated_tokens == 10
    assert stats.finished == {"length": 2}
    assert {(r.phase, r.kind, r.reason): r.steps for r in stats.replays} == {
        ("decode", "eager", "graph mode NONE"): 4,
        ("prefill", "eager", "graph mode NONE"): 1,
    }
    assert stats.as_dict()["decode"]["tokens"] == 8
    engine.reset_stats()
    assert engine.stats().generated_tokens == 0
    assert stats.generated_tokens == 10
