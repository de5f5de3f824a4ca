"""Tokens from logits: filters keep what their definitions keep, draws follow the distribution."""

from __future__ import annotations

import pytest
import torch

from atom.runner import SamplingParams
from atom.runner.request import Request
from atom.runner.sampler import Sampler

VOCAB = 50


def request_of(row=0, seed=0, prompt=(1,), generated=(), **settings):
    return Request(
        request_id=str(row),
        index=row,
        token_ids=[*prompt, *generated],
        num_prompt=len(prompt),
        params=SamplingParams(**settings),
        seed=seed,
        stop_token_ids=frozenset(),
        max_total=1000,
        row=row,
    )


@pytest.fixture
def sampler():
    return Sampler(4096, VOCAB, torch.device("cpu"))


def logits_of(seed, rows=1):
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def kept_tokens(sampler, logits, draws=3000, **settings):
    """Every token drawn with many seeds."""
    requests = [request_of(row=i, seed=i, temperature=1.0, **settings) for i in range(draws)]
    return set(sampler.sample(logits.repeat(draws, 1), requests).tolist())


def test_temperature_0_takes_the_largest(sampler):
    logits = logits_of(1, rows=5)
    requests = [request_of(row=i) for i in range(5)]
    assert sampler.sample(logits.clone(), requests).tolist() == logits.argmax(-1).tolist()


def test_top_k_keeps_the_k_largest(sampler):
    logits = logits_of(2)
    assert kept_tokens(sampler, logits, top_k=3) == set(logits[0].topk(3).indices.tolist())


def test_top_k_keeps_all_that_equal_the_last_one(sampler):
    logits = torch.full((1, VOCAB), -20.0)
    logits[0, [3, 10, 20, 30]] = torch.tensor([2.0, 1.0, 1.0, 1.0])
    assert kept_tokens(sampler, logits, top_k=2) == {3, 10, 20, 30}


def test_top_p_keeps_the_fewest_that_reach_it(sampler):
    probabilities = torch.full((1, VOCAB), 1e-9)
    probabilities[0, :4] = torch.tensor([0.5, 0.3, 0.15, 0.05])
    assert kept_tokens(sampler, probabilities.log(), top_p=0.75) == {0, 1}
    assert kept_tokens(sampler, probabilities.log(), top_p=0.85) == {0, 1, 2}
    assert kept_tokens(sampler, probabilities.log(), top_p=1e-6) == {0}


def test_top_p_counts_what_top_k_left(sampler):
    probabilities = torch.full((1, VOCAB), 1e-9)
    probabilities[0, :4] = torch.tensor([0.4, 0.3, 0.2, 0.1])
    # Of the two that top-k leaves, the first has 4/7.
    assert kept_tokens(sampler, probabilities.log(), top_k=2, top_p=0.55) == {0}
    assert kept_tokens(sampler, probabilities.log(), top_p=0.55) == {0, 1}


def test_min_p_drops_what_is_unlikely_beside_the_likeliest(sampler):
    probabilities = torch.full((1, VOCAB), 1e-9)
    probabilities[0, :4] = torch.tensor([0.6, 0.25, 0.1, 0.05])
    assert kept_tokens(sampler, probabilities.log(), min_p=0.3) == {0, 1}
    assert kept_tokens(sampler, probabilities.log(), min_p=1.0) == {0}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_distribution(sampler, temperature):
    logits, draws = logits_of(3), 4000
    requests = [request_of(row=i, seed=i, temperature=temperature) for i in range(draws)]
    drawn = sampler.sample(logits.repeat(draws, 1), requests)
    counts = torch.bincount(drawn, minlength=VOCAB)
    expected = (logits[0] / temperature).softmax(-1) * draws
    # Pearson's chi-square over the tokens expected often enough, 5 standard deviations above its mean.
    often = expected > 5
    chi_square = ((counts - expected)[often] ** 2 / expected[often]).sum()
    freedom = int(often.sum())
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_a_token_of_probability_0_is_never_drawn(sampler):
    logits = torch.full((1, VOCAB), float("-inf"))
    logits[0, [7, 41]] = 0.0
    assert kept_tokens(sampler, logits) == {7, 41}


@pytest.mark.parametrize(
    ("temperature", "drawn"),
    [(1e-300, "the largest"), (1e-40, "the largest"), (1e-12, "the largest"), (3e38, "any")],
)
def test_temperatures_at_the_ends_of_the_range_draw_tokens(sampler, temperature, drawn):
    logits = logits_of(9) * 1000
    requests = [request_of(row=i, seed=i, temperature=temperature) for i in range(200)]
    tokens = set(sampler.sample(logits.repeat(200, 1), requests).tolist())
    assert tokens == {int(logits.argmax())} if drawn == "the largest" else len(tokens) > VOCAB // 2


@pytest.mark.parametrize("penalty", [1e-300, 1e-30, 3e38])
@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1.0])
def test_extreme_penalties_draw_tokens_too(sampler, penalty, temperature):
    wish = {"repetition_penalty": penalty, "temperature": temperature}
    everything = tuple(range(VOCAB))
    for scale in (-1.0, 1.0, 1e30):
        for prompt in ((1,), everything):
            request = request_of(row=0, seed=3, prompt=prompt, **wish)
            (token,) = sampler.sample(logits_of(5).abs() * scale, [request]).tolist()
            assert 0 <= token < VOCAB
            if prompt != everything and temperature < 1:
                assert (token == 1) == (penalty < 1)


def test_logits_that_are_no_numbers_give_an_id_of_the_vocabulary_and_concern_no_neighbour(sampler):
    requests = [request_of(row=i, seed=i, temperature=1.0) for i in range(2)]
    alone = sampler.sample(logits_of(3), requests[1:]).tolist()
    broken = torch.full((1, VOCAB), float("nan"))
    tokens = sampler.sample(torch.cat([broken, logits_of(3)]), requests).tolist()
    assert 0 <= tokens[0] < VOCAB
    assert tokens[1:] == alone


def test_a_sequence_draws_the_same_token_in_any_company(sampler):
    logits = logits_of(4, rows=6)
    wishes = [
        {"temperature": 1.0},
        {},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.5, "top_p": 0.6},
        {"temperature": 1.0, "min_p": 0.1, "repetition_penalty": 1.5},
        {"temperature": 1.0, "top_k": 40, "top_p": 0.9},
    ]

    def requests():
        return [request_of(row=i, seed=90 + i, generated=(2,) * i, **wish) for i, wish in enumerate(wishes)]

    together = sampler.sample(logits.clone(), requests()).tolist()
    alone = [
        int(sampler.sample(logits[i : i + 1].clone(), [request])) for i, request in enumerate(requests())
    ]
    assert together == alone
    backwards = sampler.sample(logits.flip(0), requests()[::-1]).tolist()
    assert backwards[::-1] == together


def test_the_next_token_gets_another_random_number(sampler):
    logits = torch.zeros(1, VOCAB)
    drawn = [
        int(sampler.sample(logits.clone(), [request_of(seed=5, temperature=1.0, generated=(2,) * n)]))
        for n in range(30)
    ]
    assert len(set(drawn)) > 15


class TestRepetitionPenalty:
    def test_seen_tokens_lose_by_the_factor(self, sampler):
        logits = torch.zeros(1, VOCAB)
        logits[0, :4] = torch.tensor([2.0, 1.5, -1.0, -0.5])
        logits[0, 4:] = -50
        assert int(sampler.sample(logits.clone(), [request_of(prompt=(9,), repetition_penalty=1.5)])) == 0
        assert int(sampler.sample(logits.clone(), [request_of(prompt=(0,), repetition_penalty=1.5)])) == 1
        both = request_of(prompt=(0,), generated=(1,), repetition_penalty=100.0)
        assert int(sampler.sample(logits.clone(), [both])) == 0  # 0.02 against 0.015
        low = torch.full((1, VOCAB), -50.0)
        low[0, :2] = torch.tensor([-1.0, -1.4])
        assert int(sampler.sample(low, [request_of(prompt=(0,), repetition_penalty=1.5)])) == 1

    def test_equals_the_definition_over_a_growing_answer(self, sampler):
        request = request_of(prompt=(3, 4, 3), repetition_penalty=1.7)
        for step in range(20):
            logits = logits_of(100 + step)
            expected = logits[0].clone()
            for token in set(request.token_ids):
                expected[token] = expected[token] / 1.7 if expected[token] > 0 else expected[token] * 1.7
            token = int(sampler.sample(logits, [request]))
            assert token == int(expected.argmax())
            request.append(token)

    def test_a_row_forgets_the_request_that_had_it_before(self, sampler):
        logits = torch.full((1, VOCAB), -50.0)
        logits[0, :2] = torch.tensor([1.0, 0.9])
        first = request_of(row=2, prompt=(0,), repetition_penalty=2.0)
        assert int(sampler.sample(logits.clone(), [first])) == 1
        second = request_of(row=2, prompt=(5,), repetition_penalty=2.0)
        assert int(sampler.sample(logits.clone(), [second])) == 0

    def test_a_neighbour_without_penalty_is_left_alone(self, sampler):
        logits = torch.full((2, VOCAB), -50.0)
        logits[:, :2] = torch.tensor([1.0, 0.9])
        requests = [request_of(row=0, prompt=(0,)), request_of(row=1, prompt=(0,), repetition_penalty=2.0)]
        assert sampler.sample(logits, requests).tolist() == [0, 1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_what_the_cpu_draws():
    logits = logits_of(4, rows=64)
    requests = [
        request_of(row=i, seed=i, temperature=0.5 + i / 40, top_k=i % 7 * 3, top_p=1 - i % 5 / 10)
        for i in range(64)
    ]
    on_cpu = Sampler(64, VOCAB, torch.device("cpu")).sample(logits.clone(), requests)
    on_gpu = Sampler(64, VOCAB, torch.device("cuda")).sample(logits.cuda(), requests)
    assert (on_cpu == on_gpu.cpu()).float().mean() > 0.95
