"""Verification finds what differs and passes what does not."""

from __future__ import annotations

import pytest

from atom.config import CompilationConfig
from atom.runner import RunnerError, SamplingParams
from atom.runner.verify import verify_buckets


@pytest.fixture
def make_recorded(make_engine, make_marked_lm):
    def make(mode="tr_hybrid", **settings):
        return make_engine(
            model=make_marked_lm(bucket_fixed=True, prefill_buckets=(8, 24)),
            compilation=CompilationConfig(cudagraph_mode=mode, cudagraph_capture_sizes=[1, 4]),
            **settings,
        )

    return make


@pytest.mark.parametrize("settings", [{}, {"num_kv_blocks": 3}, {"block_size": 1}])
def test_every_bucket_equals_eager_full_and_partly_filled(make_recorded, settings):
    engine = make_recorded(**settings)
    checks = list(verify_buckets(engine.runner, engine.scheduler.blocks, seed=2))
    assert {(check.kind, check.bucket) for check in checks} == {
        ("request", 1),
        ("request", 4),
        ("decode", 1),
        ("decode", 4),
        ("prefill", 8),
        ("prefill", 24),
    }
    assert [check for check in checks if not check.equal] == []
    assert any(check.live_rows < check.bucket for check in checks)


def test_a_recording_that_went_wrong_is_found(make_recorded):
    engine = make_recorded("full")
    runner = engine.runner
    # The recording reads the weights where they were: a model that got new ones since is another model.
    layer = runner.model.mlp[0]
    layer.weight = type(layer.weight)(layer.weight * 1.5, requires_grad=False)
    checks = list(verify_buckets(runner, engine.scheduler.blocks))
    assert all(check.worst > 1e-3 for check in checks)


def test_a_busy_engine_is_left_alone(make_recorded):
    engine = make_recorded()
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=4))
    engine.step()
    with pytest.raises(RunnerError, match="verified on an idle engine"):
        next(verify_buckets(engine.runner, engine.scheduler.blocks))


def test_answers_after_a_verification_reuse_nothing_it_wrote(make_recorded, tiny_lm, prompts):
    engine = make_recorded()
    engine.generate(prompts[6], SamplingParams(max_tokens=4))
    list(verify_buckets(engine.runner, engine.scheduler.blocks))
    [output] = engine.generate(prompts[6], SamplingParams(max_tokens=4))
    assert output.token_ids == tiny_lm.dense_greedy(prompts[6], 4)
