"""Ladders and limits: whatever the limits, every batch runs, equals eager, and the table says how it ran."""

from __future__ import annotations

import pytest

from atom.config import CompilationConfig, ConfigError
from atom.runner import SamplingParams

GREEDY = SamplingParams(max_tokens=3)


def engine_of(make_engine, make_marked_lm, limit, *, sizes=None, mode="tr_hybrid", **settings):
    compilation = CompilationConfig(cudagraph_mode=mode, cudagraph_capture_sizes=sizes)
    return make_engine(
        model=make_marked_lm(bucket_fixed=True),
        compilation=compilation,
        max_num_seqs=limit,
        num_kv_blocks=4 * limit + 8,
        **{"max_num_batched_tokens": 2048, **settings},
    )


def run(engine, tiny_lm, batch):
    """`batch` sequences decoding together; returns how their decode steps ran."""
    engine.reset_stats()
    prompts = [[i % 7, 3] for i in range(batch)]
    outputs = engine.generate(prompts, GREEDY)
    assert [output.token_ids for output in outputs] == [tiny_lm.dense_greedy(p, 3) for p in prompts]
    return {(r.kind, r.reason): r.steps for r in engine.stats().replays if r.phase == "decode"}


def bucket_for(sizes, batch):
    return min(size for size in sizes if size >= batch)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 12, 20, 33])
def test_a_default_ladder_ends_at_the_limit_and_serves_every_batch(
    make_engine, make_marked_lm, tiny_lm, limit
):
    engine = engine_of(make_engine, make_marked_lm, limit)
    sizes = engine.stats().captured["request"]
    assert sizes == engine.config.capture_sizes == engine.stats().captured["decode"]
    assert sizes[0] == 1
    assert sizes[-1] == limit
    batches = {1, max(1, limit - 1), limit, *(size + 1 for size in sizes if size < limit)}
    for batch in sorted(batches):
        bucket = bucket_for(sizes, batch)
        assert run(engine, tiny_lm, batch) == {("request", f"request bucket {bucket}"): 2}


@pytest.mark.slow
def test_a_limit_above_the_default_ladder_is_in_it_too(make_engine, make_marked_lm, tiny_lm):
    engine = engine_of(make_engine, make_marked_lm, 513)
    assert engine.stats().captured["request"][-2:] == [512, 513]
    assert run(engine, tiny_lm, 513) == {("request", "request bucket 513"): 2}
    assert run(engine, tiny_lm, 500) == {("request", "request bucket 512"): 2}


@pytest.mark.parametrize("mode", ["tr_hybrid", "full"])
def test_an_explicit_ladder_is_sorted_and_what_is_above_it_runs_without_a_graph(
    make_engine, make_marked_lm, tiny_lm, mode
):
    engine = engine_of(make_engine, make_marked_lm, 12, sizes=[8, 1, 4], mode=mode)
    assert engine.stats().captured["request"] == [1, 4, 8]
    for batch, bucket in ((1, 1), (2, 4), (4, 4), (5, 8), (8, 8)):
        assert run(engine, tiny_lm, batch) == {("request", f"request bucket {bucket}"): 2}
    unit, kind = ("rows", "decode") if mode == "tr_hybrid" else ("sequences", "request")
    for batch in (9, 11, 12):
        reason = f"{batch} {unit} above the largest {kind} bucket 8"
        assert run(engine, tiny_lm, batch) == {("eager", reason): 2}


@pytest.mark.parametrize(
    ("sizes", "allowed"),
    [([4, 4], "each given once"), ([0], "at least 1"), ([], "at least 1"), ([16], "1 to 12")],
)
def test_an_explicit_ladder_that_cannot_be_is_refused(make_engine, make_marked_lm, sizes, allowed):
    with pytest.raises(ConfigError, match=r"cudagraph_capture_sizes") as error:
        engine_of(make_engine, make_marked_lm, 12, sizes=sizes)
    assert str(sizes) in str(error.value)
    assert allowed in str(error.value)


def test_fewer_tokens_a_step_than_sequences_cut_the_ladder(make_engine, make_marked_lm, tiny_lm):
    engine = engine_of(make_engine, make_marked_lm, 33, max_num_batched_tokens=6)
    assert engine.stats().captured["request"] == [1, 2, 3, 4, 5, 6]
    decode = run(engine, tiny_lm, 9)
    assert decode
    assert {kind for kind, _ in decode} == {"request"}


def test_an_explicit_ladder_above_the_tokens_of_a_step_is_refused(make_engine, make_marked_lm):
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        engine_of(make_engine, make_marked_lm, 33, sizes=[8], max_num_batched_tokens=6)


def test_a_limit_below_the_smallest_bucket_is_refused(make_engine, make_marked_lm):
    with pytest.raises(ConfigError, match=r"cudagraph_capture_sizes.*max_num_seqs"):
        engine_of(make_engine, make_marked_lm, 3, sizes=[8, 16])
