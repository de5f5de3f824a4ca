"""Logits and greedy ids are transformers' own, however a prompt is cut into steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

ROPE: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
PROMPTS = [list(range(3, 40)), [7], [90, 4, 4, 61, 12], list(range(60, 140, 3))]


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Within 1e-4 of the largest logit."""
    assert torch.isfinite(ours).all()
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kind", ROPE)
def test_logits_and_greedy_ids_equal_transformers(save_llama, step_loop, generate, kind, tied):
    saved = save_llama(rope_parameters=ROPE[kind], tie_word_embeddings=tied)
    model = saved.load()
    logits = step_loop(model).step(list(enumerate(PROMPTS)))
    for ours, prompt in zip(logits, PROMPTS, strict=True):
        assert_close(ours, saved.reference_logits(prompt)[-1])
    answers = generate(step_loop(model), PROMPTS, 12)
    assert answers == [saved.reference_greedy(prompt, 12) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "fields",
    [
        {"num_key_value_heads": 8},
        {"num_key_value_heads": 1},
        {"head_dim": 16},
        {"attention_bias": True, "mlp_bias": True},
        {"num_attention_heads": 1, "num_key_value_heads": 1},
        {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 151},
    ],
    ids=["one-to-one", "one-key-head", "wide-heads", "biases", "one-head", "odd-sizes"],
)
def test_other_shapes_equal_transformers(save_llama, step_loop, generate, fields):
    saved = save_llama(**fields)
    answers = generate(step_loop(saved.load()), PROMPTS, 8)
    assert answers == [saved.reference_greedy(prompt, 8) for prompt in PROMPTS]


@pytest.mark.parametrize("scattered", [True, False])
@pytest.mark.parametrize("chunk", [1, 3, 5, 36])
def test_a_prompt_in_chunks_gives_the_logits_of_one_shot(save_llama, step_loop, chunk, scattered):
    saved = save_llama()
    model = saved.load()
    prompt = PROMPTS[0]
    loop = step_loop(model, scattered=scattered)
    for begin in range(0, len(prompt), chunk):
        logits = loop.step([(0, prompt[begin : begin + chunk])])
    assert_close(logits[0], saved.reference_logits(prompt)[-1])


def test_prompts_and_answers_of_one_step_do_not_mix(save_llama, step_loop):
    saved = save_llama()
    loop = step_loop(saved.load())
    loop.step([(0, PROMPTS[0][:30]), (1, PROMPTS[1]), (2, PROMPTS[2])])
    # a chunk that continues, a decoding sequence, a fresh prompt, another decoding one
    logits = loop.step([(0, PROMPTS[0][30:]), (1, [9]), (3, PROMPTS[3]), (2, [11])])
    wanted = [PROMPTS[0], [*PROMPTS[1], 9], PROMPTS[3], [*PROMPTS[2], 11]]
    for ours, ids in zip(logits, wanted, strict=True):
        assert_close(ours, saved.reference_logits(ids)[-1])


def test_lengths_far_apart_decode_together(save_llama, step_loop):
    saved = save_llama()
    loop = step_loop(saved.load(), block_size=2)
    work = [(0, [3]), (1, list(range(3, 100))), (2, [5, 6]), (3, list(range(20, 80)))]
    loop.step(work)
    logits = loop.step([(seq, [8]) for seq, _ in work])
    for ours, (_, ids) in zip(logits, work, strict=True):
        assert_close(ours, saved.reference_logits([*ids, 8])[-1])


def test_the_bucket_fixed_body_gives_the_same_answers(save_llama, step_loop, generate):
    saved = save_llama()
    model = saved.load()
    wanted = generate(step_loop(model), PROMPTS, 8)
    assert generate(step_loop(model), PROMPTS, 8, bucket=(4, 0)) == wanted
    assert generate(step_loop(model), PROMPTS[:3], 8, bucket=(7, 0)) == wanted[:3]


def test_the_bucket_fixed_body_verifies_several_rows(save_llama, step_loop):
    model = save_llama().load()
    work = [(0, [5, 6, 7]), (1, [8, 9, 10])]
    logits = []
    for bucket in (None, (2, 2), (3, 2)):
        loop = step_loop(model)
        loop.step(list(enumerate(PROMPTS[:2])))
        logits.append(loop.step(work, bucket=bucket))
    assert_close(logits[1], logits[0])
    assert_close(logits[2], logits[0])


@pytest.mark.parametrize("padding", [{"rows": 8}, {"bucket": (8, 0)}], ids=["ragged", "bucket"])
@pytest.mark.parametrize("live", [5, 1, 0])
def test_padding_writes_to_block_0_alone(save_llama, step_loop, padding, live):
    # As many blocks as the sequences need: block 1 and the last one both belong to live sequences.
    loop = step_loop(save_llama().load(), max_len=16, num_seqs=5)
    work = [(seq, [3 + seq]) for seq in range(live)]
    for _ in range(16):
        before = {
            (name, kind): tensor.clone()
            for name, cache in loop.caches.items()
            for kind, tensor in cache.tensors.items()
        }
        slots = [int(loop.tables[seq, loop.lens[seq] // 4]) * 4 + loop.lens[seq] % 4 for seq in range(live)]
        loop.step(work, **padding)
        assert torch.isfinite(loop.hidden).all()
        for (name, kind), old in before.items():
            changed = (
                (loop.caches[name].tensors[kind] != old).flatten(2).any(-1).flatten().nonzero().flatten()
            )
            assert set(changed.tolist()) - set(range(4)) == set(slots)


def test_no_step_zero_fills_attention_so_that_shapes_can_be_traced(save_llama):
    model = save_llama().load()
    with torch.inference_mode():
        hidden = model(torch.tensor([4, 5, 6]), torch.tensor([0, 1, 2]))
    assert hidden.shape == (3, 64)
    assert torch.isfinite(hidden).all()


def test_bfloat16_stays_near_float32(save_llama, step_loop):
    saved = save_llama()
    logits = step_loop(saved.load(torch.bfloat16)).step([(0, PROMPTS[0])])
    theirs = saved.reference_logits(PROMPTS[0])[-1:]
    assert logits.dtype == torch.float32
    assert (logits - theirs).abs().max() <= 0.05 * theirs.abs().max()
