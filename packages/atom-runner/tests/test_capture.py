"""Recording at start-up and replaying in every mode: the same tokens as without, and a true account of it."""

from __future__ import annotations

import pytest
import torch

from atom.config import CompilationConfig, CUDAGraphMode
from atom.graphs.forward_context import ForwardContext, get_forward_context
from atom.graphs.region_graph import token_graphs
from atom.runner import CaptureError, SamplingParams

GRAPH_MODES = [mode for mode in CUDAGraphMode if mode is not CUDAGraphMode.NONE]
HYBRID = [mode for mode in GRAPH_MODES if mode.uses_tr_hybrid()]
FULL = [mode for mode in GRAPH_MODES if not mode.uses_tr_hybrid()]
GREEDY = SamplingParams(max_tokens=12)


def graphs(mode, sizes=(2, 8), **settings):
    return {
        "compilation": CompilationConfig(cudagraph_mode=mode, cudagraph_capture_sizes=list(sizes)),
        "num_kv_blocks": 200,
        "max_num_seqs": 12,
        "max_num_batched_tokens": 64,
        **settings,
    }


def expected(tiny_lm, prompts, max_tokens=12):
    return [tiny_lm.dense_greedy(prompt, max_tokens) for prompt in prompts]


def replays(engine):
    return {(r.phase, r.kind, r.reason): r.steps for r in engine.stats().replays}


@pytest.mark.parametrize("bucket_fixed", [True, False])
@pytest.mark.parametrize("mode", HYBRID)
@pytest.mark.parametrize("batch", [1, 2, 3, 8, 9])
def test_hybrid_modes_give_the_same_tokens_below_at_and_above_each_bucket(
    make_engine, make_marked_lm, tiny_lm, prompts, mode, batch, bucket_fixed
):
    engine = make_engine(model=make_marked_lm(bucket_fixed=bucket_fixed), **graphs(mode))
    captured = {"decode": [2, 8], **({"request": [2, 8]} if bucket_fixed else {})}
    assert engine.stats().captured == captured
    # All prompts in one step, so that all sequences decode together.
    mine = [prompts[i % 6] for i in range(batch)]
    outputs = engine.generate(mine, GREEDY)
    assert [output.token_ids for output in outputs] == expected(tiny_lm, mine)
    if batch == 9:
        decode = ("decode", "eager", "9 rows above the largest decode bucket 8")
    else:
        bucket = 2 if batch <= 2 else 8
        kind = "request" if bucket_fixed else "token"
        name = "request" if bucket_fixed else "decode token"
        decode = ("decode", kind, f"{name} bucket {bucket}")
    assert replays(engine) == {
        ("prefill", "eager", "no prefill bucket recorded"): 1,
        decode: 11,
    }


@pytest.mark.parametrize("mode", FULL)
@pytest.mark.parametrize("batch", [1, 3, 8, 9])
def test_full_modes_give_the_same_tokens_below_at_and_above_each_bucket(
    make_engine, make_marked_lm, tiny_lm, prompts, mode, batch
):
    engine = make_engine(model=make_marked_lm(bucket_fixed=True), **graphs(mode))
    assert engine.stats().captured == {"request": [2, 8]}
    mine = [prompts[i % 6] for i in range(batch)]
    outputs = engine.generate(mine, GREEDY)
    assert [output.token_ids for output in outputs] == expected(tiny_lm, mine)
    decode = {
        1: ("decode", "request", "request bucket 2"),
        3: ("decode", "request", "request bucket 8"),
        8: ("decode", "request", "request bucket 8"),
        9: ("decode", "eager", "9 sequences above the largest request bucket 8"),
    }[batch]
    assert replays(engine) == {("prefill", "eager", f"prefill under {mode.name}"): 1, decode: 11}


@pytest.mark.parametrize("mode", FULL)
def test_full_refuses_a_region_planned_on_the_host_and_names_it(make_engine, make_marked_lm, prompts, mode):
    with pytest.raises(CaptureError, match=r"decode bucket 8: .*attend.* or use TR_HYBRID"):
        make_engine(model=make_marked_lm(), **graphs(mode))
    # Nothing of the failure is left: the next engine records and answers.
    assert get_forward_context() == ForwardContext()
    engine = make_engine(model=make_marked_lm(), **graphs(CUDAGraphMode.TR_HYBRID))
    assert engine.stats().captured == {"decode": [2, 8]}


def test_mixed_and_chunked_steps_replay_prefill_buckets_of_models_that_ask(
    make_engine, make_marked_lm, tiny_lm, prompts
):
    model = make_marked_lm(bucket_fixed=True, prefill_buckets=(2, 16, 32))
    engine = make_engine(model=model, **graphs(CUDAGraphMode.TR_HYBRID, max_num_batched_tokens=32))
    assert engine.stats().captured == {"request": [2, 8], "decode": [2, 8], "prefill": [2, 16, 32]}
    assert [output.token_ids for output in engine.generate(prompts, GREEDY)] == expected(tiny_lm, prompts)
    ran = replays(engine)
    assert {reason for phase, kind, reason in ran if phase == "prefill"} <= {
        "prefill token bucket 2",
        "prefill token bucket 16",
        "prefill token bucket 32",
    }
    assert ("prefill", "token", "prefill token bucket 32") in ran


def test_a_bucket_that_decode_and_prefill_share_is_recorded_once(make_engine, make_marked_lm):
    model = make_marked_lm(prefill_buckets=(8, 16))
    make_engine(model=model, **graphs(CUDAGraphMode.TR_HYBRID))
    [graph] = token_graphs(model).values()
    assert len(graph.recordings()) == 3  # 2, 8 and 16 rows
    assert (graph.captured_sizes("prefill"), graph.captured_sizes("decode")) == ([8, 16], [2, 8])


def test_buckets_are_recorded_largest_first_and_reported_ascending(make_engine, make_marked_lm, monkeypatch):
    engine = make_engine(model=make_marked_lm(), **graphs(CUDAGraphMode.TR_HYBRID))
    recorded = []
    record = engine.runner._capture._record_hybrid
    spy = lambda bs: (recorded.append(bs), record(bs))  # noqa: E731
    monkeypatch.setattr(engine.runner._capture, "_record_hybrid", spy)
    heard = []
    seconds, sizes = engine.runner.capture_cudagraph(lambda *report: heard.append(report))
    assert recorded == [8, 2]
    assert sizes == [2, 8]
    assert seconds > 0
    assert heard == [("Recording graphs", done, 2) for done in range(3)]


def test_other_ranks_draw_no_bar(make_engine, make_marked_lm, make_config):
    engine = make_engine(model=make_marked_lm(), **graphs(CUDAGraphMode.TR_HYBRID))
    parallel = engine.config.parallel_config.replace(tensor_parallel_size=2, rank=1)
    engine.runner.config = engine.config.replace(parallel_config=parallel)
    heard = []
    engine.runner.capture_cudagraph(lambda *report: heard.append(report))
    assert heard == []


@pytest.mark.parametrize("settings", [{}, {"enforce_eager": True}])
def test_nothing_is_recorded_without_a_mode_or_when_eager_is_enforced(
    make_engine, make_marked_lm, tiny_lm, prompts, settings
):
    compilation = CompilationConfig(cudagraph_mode="full" if settings else None)
    engine = make_engine(model=make_marked_lm(), compilation=compilation, **settings)
    assert engine.stats().captured == {}
    assert engine.generate(prompts[:3], GREEDY)[2].token_ids == tiny_lm.dense_greedy(prompts[2], 12)
    assert all(kind == "eager" for _, kind, _ in replays(engine))


def test_a_model_without_recording_unit_runs_eagerly_and_says_so(make_engine, tiny_lm, prompts, caplog):
    engine = make_engine(**graphs(CUDAGraphMode.TR_HYBRID))
    assert "no module of this model is marked @token_graph" in caplog.text
    engine.generate(prompts[:2], GREEDY)
    assert ("decode", "eager", "no decode bucket recorded") in replays(engine)


def test_the_forward_context_is_empty_after_capture_and_after_each_step(make_engine, make_marked_lm, prompts):
    engine = make_engine(model=make_marked_lm(bucket_fixed=True), **graphs(CUDAGraphMode.TR_HYBRID))
    assert get_forward_context() == ForwardContext()
    engine.add_request(prompts[0], GREEDY)
    engine.step()
    assert get_forward_context() == ForwardContext()


def test_sampled_answers_are_not_frozen_by_a_graph(make_engine, make_marked_lm, prompts):
    wish = SamplingParams(temperature=1.5, seed=3, max_tokens=12)
    plain = make_engine().generate(prompts[:3], wish)
    recorded = make_engine(model=make_marked_lm(bucket_fixed=True), **graphs(CUDAGraphMode.FULL))
    first = [output.token_ids for output in recorded.generate(prompts[:3], wish)]
    assert first == [output.token_ids for output in plain]
    assert len(set(first[0])) > 4


def test_run_model_returns_logits_and_the_live_rows_hidden_states(
    make_engine, make_marked_lm, tiny_lm, prompts
):
    engine = make_engine(model=make_marked_lm(bucket_fixed=True), **graphs(CUDAGraphMode.FULL))
    seen = []
    run_model = engine.runner.run_model

    def spy(input_ids):
        logits, hidden_states = run_model(input_ids)
        seen.append((tuple(input_ids.shape), logits.clone(), hidden_states.clone()))
        return logits, hidden_states

    engine.runner.run_model = spy
    engine.generate(prompts[2:5], SamplingParams(max_tokens=2))
    (_, logits, hidden_states) = seen[1]
    assert seen[1][0] == (8,)
    assert (logits.shape, hidden_states.shape) == ((3, 97), (3, 32))
    dense = torch.stack([tiny_lm.dense_logits(p + tiny_lm.dense_greedy(p, 1))[-1] for p in prompts[2:5]])
    torch.testing.assert_close(logits, dense, rtol=1e-4, atol=1e-4)


def test_a_model_that_another_runner_recorded_is_refused(make_engine, make_marked_lm):
    model = make_marked_lm()
    make_engine(model=model, **graphs(CUDAGraphMode.TR_HYBRID))
    with pytest.raises(CaptureError, match="this model was recorded by another runner"):
        make_engine(model=model, **graphs(CUDAGraphMode.TR_HYBRID))
