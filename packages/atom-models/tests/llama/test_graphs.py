"""The model under recordings: replays equal eager at the bucket's shape, bit for bit on the tape."""

from __future__ import annotations

import pytest
import torch

from atom.graphs import ReqGraph, request_bucket, token_graph_of
from atom.graphs.forward_context import Context, forward_context

PROMPTS = [[5, 9, 11, 30], [7], [90, 4, 4]]
DECODE = [[(0, [3]), (1, [8]), (2, [9])], [(0, [17]), (1, [4]), (2, [1])], [(0, [2]), (1, [77]), (2, [5])]]


def prefilled(step_loop, model):
    loop = step_loop(model)
    loop.step(list(enumerate(PROMPTS)))
    return loop


@pytest.mark.parametrize("rows", [3, 5])
def test_a_token_graph_breaks_at_each_attention_layer_and_equals_eager(save_llama, step_loop, rows):
    model = save_llama().load()
    eager = prefilled(step_loop, model)
    wanted = [eager.step(work, rows=rows) for work in DECODE]
    loop = prefilled(step_loop, model)
    got = [
        loop.step(work, rows=rows, tr_graph="record" if i == 0 else "replay") for i, work in enumerate(DECODE)
    ]
    for ours, theirs in zip(got, wanted, strict=True):
        assert torch.equal(ours, theirs)
    graph = token_graph_of(model.model)
    assert graph.captured_sizes("decode") == [rows]


def test_one_recording_serves_a_prompt_of_its_rows(save_llama, step_loop):
    model = save_llama().load()
    work = [(0, [4, 5, 6, 7]), (1, [9])]
    wanted = step_loop(model).step(work, rows=6)
    loop = prefilled(step_loop, model)
    loop.step(DECODE[0], rows=6, tr_graph="record")
    assert torch.equal(step_loop(model).step(work, rows=6, tr_graph="replay"), wanted)


@pytest.mark.parametrize("bucket", [(3, 0), (5, 0), (4, 2)])
def test_a_request_graph_holds_attention_inline_and_equals_eager(save_llama, step_loop, bucket):
    model = save_llama().load()
    steps = [[(seq, [token] * (bucket[1] + 1)) for seq, (token,) in work] for work in DECODE]
    eager = prefilled(step_loop, model)
    wanted = [eager.step(work, bucket=bucket) for work in steps]

    loop = prefilled(step_loop, model)
    inputs = loop._inputs(steps[0], bucket, None)
    metadata = model.attn_metadata_builder.build(
        inputs, running_bs=bucket[0], running_tokens=inputs.input_ids.shape[0], request_bucket=bucket
    )
    graph = ReqGraph()
    context = Context(inputs.positions, batch_size=3, running_bs=bucket[0])
    hidden = torch.zeros(inputs.input_ids.shape[0], 64)
    with torch.inference_mode(), forward_context(metadata, None, context, static=loop.static):
        graph.record(lambda: hidden.copy_(model(inputs.input_ids, inputs.positions)), bucket=bucket)
        for i, work in enumerate(steps):
            if i > 0:
                later = loop._inputs(work, bucket, None)
                for name in ("input_ids", "positions", "seq_lens", "block_tables", "slot_mapping"):
                    getattr(inputs, name).copy_(getattr(later, name))
            graph.replay(request_bucket(bucket[0], bucket[1] + 1))
            ends = torch.tensor([len(tokens) for _, tokens in work]).cumsum(0) - 1
            assert torch.equal(model.compute_logits(hidden[ends]), wanted[i])


def test_a_cache_may_have_a_format_of_its_own(save_llama, step_loop):
    saved = save_llama()
    model = saved.load(cache="bfloat16")
    assert {spec.dtype for spec in model.kv_cache_spec()} == {"bfloat16"}
    prompt = [5, 9, 11, 30]
    loop = step_loop(model)
    loop.step([(0, prompt)])
    logits, wanted = loop.step([(0, [3])]), saved.reference_logits([*prompt, 3])[-1]
    assert (logits - wanted).abs().max() < 0.03 * wanted.abs().max()


def test_what_a_runner_asks_for(save_llama):
    model = save_llama().load()
    specs = model.kv_cache_spec()
    assert [spec.layer_name for spec in specs[::2]] == [
        "model.layers.0.self_attn.attn",
        "model.layers.1.self_attn.attn",
    ]
    assert [spec.name for spec in specs] == ["k", "v"] * 2
    assert {(spec.row_shape, spec.dtype, spec.kind) for spec in specs} == {((2, 8), "float32", "paged")}
    assert list(model.attention_layers) == [0, 1]
    assert all(layer.layer_id == i for i, layer in model.attention_layers.items())
