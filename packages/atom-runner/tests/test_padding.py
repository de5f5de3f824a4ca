"""Padding rows touch nothing that belongs to a request, byte for byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom.config import CompilationConfig
from atom.runner import SamplingParams

BLOCK, STEPS = 4, 64


def copies(runner):
    return {
        (layer, name): tensor.clone()
        for layer, cache in runner.static_forward_context.kv_cache_data.items()
        for name, tensor in cache.tensors.items()
    }


def changed_slots(runner, before):
    """Slots of blocks that requests own in which any byte of any cache changed, by tensor."""
    changed = {}
    for (layer, name), old in before.items():
        new = runner.static_forward_context.kv_cache_data[layer].tensors[name]
        differs = (new.view(torch.uint8) != old.view(torch.uint8)).flatten(2).any(-1)  # [blocks, rows]
        differs[0] = False  # the block reserved for padding
        changed[layer, name] = set(differs.flatten().nonzero().flatten().tolist())
    return changed


@pytest.fixture
def padded_to_8(monkeypatch):
    """Makes every decode step of a runner run eagerly at the shape of bucket 8."""

    def apply(runner):
        decide = runner.decide

        def padded(*, is_prefill):
            mode = decide(is_prefill=is_prefill)
            return mode if is_prefill else replace(mode, running_bs=8, running_tokens=8)

        monkeypatch.setattr(runner, "decide", padded)

    return apply


def eager(make_engine, make_marked_lm, padded_to_8, **settings):
    engine = make_engine(**settings)
    padded_to_8(engine.runner)
    return engine


def recorded(mode, *, bucket_fixed):
    def make(make_engine, make_marked_lm, padded_to_8, **settings):
        return make_engine(
            model=make_marked_lm(bucket_fixed=bucket_fixed),
            compilation=CompilationConfig(cudagraph_mode=mode, cudagraph_capture_sizes=[8]),
            **settings,
        )

    return make


WAYS = {
    "eager": eager,
    "token": recorded("tr_hybrid", bucket_fixed=False),
    "request": recorded("tr_hybrid", bucket_fixed=True),
    "full": recorded("full", bucket_fixed=True),
}


@pytest.mark.parametrize("live", [5, 1])
@pytest.mark.parametrize("way", WAYS)
def test_a_padded_decode_step_changes_only_the_live_rows_slots(
    make_engine, make_marked_lm, tiny_lm, prompts, padded_to_8, live, way
):
    mine = prompts[3 : 3 + live]
    # Exactly as many blocks as the requests need: the last one and the first one belong to somebody.
    needed = sum(-(-(len(prompt) + STEPS) // BLOCK) for prompt in mine)
    engine = WAYS[way](
        make_engine,
        make_marked_lm,
        padded_to_8,
        num_kv_blocks=needed,
        block_size=BLOCK,
        max_num_batched_tokens=64,
    )
    for prompt in mine:
        engine.add_request(prompt, SamplingParams(max_tokens=STEPS + 1))
    engine.step()
    answers = {}
    for _ in range(STEPS):
        before = copies(engine.runner)
        outputs = engine.step()
        expected = set(engine.runner.batch.slot_mapping[:live].tolist())
        assert len(expected) == live
        for slots in changed_slots(engine.runner, before).values():
            assert slots == expected
        answers |= {output.request_id: output.token_ids for output in outputs if output.finished}
    assert engine.scheduler.blocks.num_free == needed  # all ended in this step
    assert list(answers.values()) == [tiny_lm.dense_greedy(prompt, STEPS + 1) for prompt in mine]
    kinds = {replay.kind for replay in engine.stats().replays if replay.phase == "decode"}
    assert kinds == {{"full": "request"}.get(way, way)}


def test_a_dummy_step_without_live_rows_changes_no_requests_slot(make_engine, prompts):
    engine = make_engine()
    for prompt in prompts[:3]:
        engine.add_request(prompt, SamplingParams(max_tokens=30))
    engine.step()
    before = copies(engine.runner)
    engine.runner.warm_up([1] * 8, is_prefill=False)
    engine.runner.warm_up([16, 15], is_prefill=True)
    assert all(not slots for slots in changed_slots(engine.runner, before).values())
