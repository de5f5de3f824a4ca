"""The model against transformers' in float32."""

from __future__ import annotations

import pytest
import torch

CONFIGURATIONS = {
    "flash schedule": ([0, 0, 4, 128], {"num_hash_layers": 3}),
    "pro schedule": ([128, 128, 4, 128], {"num_hash_layers": 2, "num_attention_heads": 6, "o_groups": 3}),
    "window alone": ([0, 0], {"num_hash_layers": 0, "num_attention_heads": 3, "o_groups": 1}),
    "sparse alone, odd heads": ([4, 4], {"num_attention_heads": 5, "o_groups": 5, "index_topk": 3}),
    "heavy alone": ([128], {"num_hash_layers": 0, "sliding_window": 128}),
    "full window, every entry picked": ([4, 0, 128], {"sliding_window": 128, "index_topk": 512}),
    "no scaling, narrow streams": ([4, 128], {"rope_scaling": None, "hc_mult": 2, "swiglu_limit": 0.5}),
}
PROMPTS = {
    "flash schedule": 125,
    "pro schedule": 254,
    "window alone": 9,
    "sparse alone, odd heads": 3,
    "heavy alone": 200,
    "full window, every entry picked": 130,
    "no scaling, narrow streams": 64,
}
STEPS = 300


def relative(ours: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((ours - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_prefill_and_300_steps_give_the_references_logits_and_ids(name, save_v4, step_loop, prompt_of):
    ratios, fields = CONFIGURATIONS[name]
    saved = save_v4(ratios, **fields)
    prompt = prompt_of(PROMPTS[name])
    answer, logits = step_loop(saved.load()).generate(1, prompt, STEPS)
    wanted = saved.logits([*prompt, *answer[:-1]])
    assert relative(logits, wanted) < 1e-4
    assert answer == wanted[len(prompt) - 1 :].argmax(-1).tolist()


def test_the_references_own_cache_gives_the_same_ids(save_v4, step_loop, prompt_of):
    saved = save_v4([0, 0, 4, 128], num_hash_layers=3)
    prompt = prompt_of(125)
    answer, _ = step_loop(saved.load()).generate(0, prompt, 20)
    with torch.inference_mode():
        ids = saved.reference.generate(
            torch.tensor([prompt]), max_new_tokens=20, min_new_tokens=20, do_sample=False
        )
    assert answer == ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    "sizes", [[1] * 140, [3, 5, 120, 1, 11], [127, 13], [128, 12], [129, 11], [2, 130, 8]]
)
def test_a_prompt_in_chunks_equals_the_prompt_at_once(sizes, save_v4, step_loop, prompt_of):
    saved = save_v4([0, 0, 4, 128], num_hash_layers=3)
    model, prompt = saved.load(), prompt_of(140, seed=3)
    loop = step_loop(model)
    whole = loop.step([(0, prompt)])
    chunks, begin = [], 0
    for size in sizes:
        chunks.append(loop.step([(1, prompt[begin : begin + size])]))
        begin += size
    assert relative(torch.cat(chunks), whole) < 1e-5


def test_ragged_requests_together_equal_each_alone(save_v4, step_loop, prompt_of):
    saved = save_v4([0, 0, 4, 128], num_hash_layers=3)
    model = saved.load()
    prompts = [prompt_of(7, seed=5), prompt_of(131, seed=6), prompt_of(40, seed=7)]
    together = step_loop(model)
    logits = together.step(list(enumerate(prompts)))
    ends = torch.tensor([len(prompt) for prompt in prompts]).cumsum(0) - 1
    answers = [[int(row.argmax())] for row in logits[ends]]
    for step in range(40):
        work = [(seq, answer[-1:]) for seq, answer in enumerate(answers)]
        if step == 20:  # a chunk of another length beside those that decode
            work[0] = (0, [answers[0][-1], 5, 6])
        rows = together.step(work).argmax(-1).tolist()
        if step == 20:
            answers[0] += [5, 6, rows[2]]
            rows = rows[2:]
            rows[0] = None
        for answer, token in zip(answers, rows, strict=True):
            if token is not None:
                answer.append(token)
    for seq, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        wanted = saved.logits([*prompt, *answer[:-1]])[len(prompt) - 1 :].argmax(-1).tolist()
        if seq == 0:
            wanted[21:23] = [5, 6]  # forced
        assert answer == wanted


def test_a_slot_may_be_taken_over_by_another_sequence(save_v4, step_loop, prompt_of):
    saved = save_v4([0, 0, 4, 128], num_hash_layers=3)
    model = saved.load()
    fresh, used = step_loop(model), step_loop(model)
    used.step([(0, prompt_of(300, seed=8))])
    used.lens[0] = 0
    prompt = prompt_of(10, seed=9)
    assert torch.equal(used.step([(0, prompt)]), fresh.step([(0, prompt)]))


def test_what_a_runner_asks_for(save_v4):
    model = save_v4([0, 4, 128]).load()
    specs = {(spec.layer_name[-11:-10], spec.name): spec for spec in model.kv_cache_spec()}
    kinds = {key: (spec.kind, spec.tokens_per_row, spec.rows_per_slot) for key, spec in specs.items()}
    assert kinds == {
        ("0", "window"): ("slot", 1, 16),
        ("1", "window"): ("slot", 1, 16),
        ("1", "entries"): ("paged", 4, 0),
        ("1", "entries_state"): ("slot", 1, 8),
        ("1", "index_keys"): ("paged", 4, 0),
        ("1", "index_keys_state"): ("slot", 1, 8),
        ("2", "window"): ("slot", 1, 16),
        ("2", "entries"): ("paged", 128, 0),
        ("2", "entries_state"): ("slot", 1, 128),
    }
    assert list(model.attention_layers) == [0, 1, 2]
    assert model.prefill_token_buckets(None) == []
