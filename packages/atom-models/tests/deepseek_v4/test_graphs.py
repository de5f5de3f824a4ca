"""The model under recordings: replays equal eager at the bucket's shape, bit for bit on the tape."""

from __future__ import annotations

import importlib

import pytest
import torch

from atom.graphs import ReqGraph, token_graph_of

ROWS = 4


def decode_steps(seed: int = 0) -> list[list[tuple[int, list[int]]]]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(96, (10, 3), generator=generator).tolist()
    return [[(seq, [token]) for seq, token in enumerate(step)] for step in tokens]


def prefilled(step_loop, model, prompt_of):
    loop = step_loop(model)
    loop.step([(0, prompt_of(125)), (1, prompt_of(3)), (2, prompt_of(60))])
    return loop


@pytest.mark.parametrize("index", ["model", "fp8", "fp4"])
def test_a_token_graph_breaks_at_fp4_scores_alone_and_equals_eager(index, save_v4, step_loop, prompt_of):
    model = save_v4([0, 0, 4, 128], num_hash_layers=3).load(index_cache_dtype=index)
    eager, loop = (prefilled(step_loop, model, prompt_of) for _ in range(2))
    for number, work in enumerate(decode_steps()):
        wanted = eager.step(work, rows=ROWS)
        got = loop.step(work, rows=ROWS, tr_graph="record" if number == 0 else "replay")
        assert torch.equal(got, wanted)
    graph = token_graph_of(model)
    (recording,) = graph.recordings().values()
    assert [region.name for region in recording.regions] == ["_fp4_band_logits"] * (index == "fp4")
    assert graph.captured_sizes("decode") == [ROWS]
    assert graph.captured_sizes("prefill") == []


def test_a_request_graph_holds_the_fixed_launch_of_fp4(save_v4, step_loop, prompt_of):
    model = save_v4([0, 0, 4, 128], num_hash_layers=3).load(index_cache_dtype="fp4")
    bucket, steps = (ROWS, 0), decode_steps()
    eager, loop = (prefilled(step_loop, model, prompt_of) for _ in range(2))
    wanted = [eager.step(work, bucket=bucket) for work in steps]
    graph, inputs = ReqGraph(), loop.inputs(steps[0], rows=ROWS)
    hidden = torch.zeros(ROWS, 64)
    with torch.inference_mode(), loop.context(inputs, bucket=bucket):
        graph.record(lambda: hidden.copy_(model(inputs.input_ids, inputs.positions)), bucket=bucket)
        for number, work in enumerate(steps):
            if number > 0:
                later = loop.inputs(work, rows=ROWS)
                for name in ("input_ids", "positions", "seq_lens", "block_tables", "state_slots"):
                    getattr(inputs, name).copy_(getattr(later, name))
            graph.replay(bucket)
            assert torch.equal(model.compute_logits(hidden[:3]), wanted[number])


def test_the_guides_module_is_the_home_of_the_scores():
    alias = importlib.import_module("atom.model_ops.indexer.score")
    assert alias is importlib.import_module("atom.models.deepseek_v4.indexer_score")
    assert alias._fp4_band_logits.__name__ == "_fp4_band_logits"
