import pytest
import torch

from atom.models.kernels.errors import KernelArgumentError
from atom.models.kernels.reference import sampling as twin


@pytest.fixture
def draw(backend):
    """Sample with settings given as numbers or lists."""

    def run(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seeds=0, steps=0, kernel=True):
        rows = logits.shape[0]
        dtypes = {
            "temperature": torch.float32,
            "top_k": torch.int32,
            "top_p": torch.float32,
            "min_p": torch.float32,
        }
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        given |= {"seeds": seeds, "steps": steps}
        settings = {
            name: torch.as_tensor(value, dtype=dtypes.get(name, torch.int64))
            .to(backend.device)
            .expand(rows)
            .contiguous()
            for name, value in given.items()
        }
        if kernel:
            return backend.call("sampling.sample", logits, **settings)
        return twin.sample(logits.double(), **settings)

    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "vocab"), [(1, 49152), (5, 1000), (129, 33)])
def test_greedy_takes_the_first_of_the_largest(backend, random, rows, vocab, dtype):
    logits = random(rows, vocab, dtype=dtype)
    logits[0, vocab // 2] = logits[0, vocab - 1] = 50.0

    actual = backend.call("sampling.greedy", logits)

    assert actual.dtype == torch.int64
    assert torch.equal(actual, twin.greedy(logits))
    assert actual[0] == vocab // 2


@pytest.mark.parametrize("vocab", [97, 2500])
@pytest.mark.parametrize(
    "cuts",
    [
        {},
        {"top_k": 1},
        {"top_k": 4},
        {"top_k": 50},
        {"top_p": 0.9},
        {"top_p": 0.05},
        {"min_p": 0.1},
        {"top_k": 30, "top_p": 0.7},
        {"top_k": 3, "top_p": 0.95, "min_p": 0.02},
        {"temperature": 0.3, "top_p": 0.8},
        {"temperature": 3.0, "top_k": 40},
        {"temperature": 0.0},
    ],
    ids=str,
)
def test_draws_equal_the_twins_in_float64(backend, random, draw, vocab, cuts):
    rows = 12 if backend.is_device else 4
    logits = random(rows, vocab, scale=3.0)
    seeds = torch.randint(0, 2**62, (rows,), generator=random.generator)

    actual = draw(logits, seeds=seeds, steps=range_of(rows), **cuts)
    wanted = draw(logits, seeds=seeds, steps=range_of(rows), kernel=False, **cuts)

    # two scores within float32 rounding of each other, or a token within it of a cut, may go either way
    assert (actual == wanted).float().mean() >= 1 - 1 / rows
    assert ((actual >= 0) & (actual < vocab)).all()


def range_of(rows):
    return torch.arange(rows) * 7


def test_frequencies_follow_the_distribution(backend, draw):
    rows = 4000 if backend.is_device else 60
    logits = (
        torch.tensor([2.0, 1.0, 0.0, -1.0, float("-inf")], device=backend.device).expand(rows, 5).contiguous()
    )

    tokens = draw(logits, seeds=5, steps=torch.arange(rows))

    shares = torch.bincount(tokens, minlength=5).cpu() / rows
    torch.testing.assert_close(
        shares, torch.softmax(logits[0].cpu(), 0), rtol=0, atol=4 * (0.25 / rows) ** 0.5
    )
    assert shares[4] == 0


def test_a_draw_depends_on_seed_and_step_alone(random, draw):
    logits = random(1, 300).expand(4, 300).contiguous()
    tokens = draw(logits, seeds=torch.tensor([7, 8, 7, 7]), steps=torch.tensor([3, 3, 3, 4]))
    alone = draw(logits[:1], seeds=7, steps=3)
    assert tokens[0] == tokens[2] == alone[0]


def test_each_row_obeys_its_own_settings(random, draw):
    logits = random(3, 500, scale=2.0)
    settings = {
        "temperature": torch.tensor([0.0, 1.0, 0.7]),
        "top_k": torch.tensor([0, 1, 0]),
        "top_p": torch.tensor([0.5, 1.0, 1e-6]),
    }
    # greedy, top-1 and a vanishing nucleus all leave the likeliest token
    assert torch.equal(draw(logits, **settings), twin.greedy(logits))


def test_tokens_that_tie_at_the_cut_are_all_kept(backend, draw):
    rows = 300 if backend.is_device else 20
    logits = torch.zeros(rows, 8, device=backend.device)
    logits[:, 0] = 1.0
    tokens = draw(logits, top_k=2, steps=torch.arange(rows))
    assert len(tokens.unique()) > (7 if backend.is_device else 2)


def test_philox_gives_its_known_answers():
    zero = torch.zeros(1, dtype=torch.int64)
    ones = torch.full((1,), -1, dtype=torch.int64)
    # the reference implementation's known answers for key 0 and counter 0
    assert [int(word) for word in twin.philox(zero, zero, zero)] == [
        0x6627E8D5,
        0xE169C58D,
        0xBC57AC4C,
        0x9B00DBD8,
    ]
    assert int(twin.philox(ones, zero, zero)[0]) != int(twin.philox(zero, zero, zero)[0])
    assert int(twin.philox(zero, zero, ones)[0]) != int(twin.philox(zero, ones, zero)[0])


def test_gumbel_noise_has_its_mean_and_variance():
    noise = twin.gumbel(torch.arange(50), torch.zeros(50, dtype=torch.int64), 2000)
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.02)
    assert float(noise.var()) == pytest.approx(1.6449, abs=0.06)


def test_settings_of_another_length_are_refused(backend, random):
    one = torch.ones(1, device=backend.device)
    with pytest.raises(KernelArgumentError, match=r"must be \[2\]"):
        backend.call(
            "sampling.sample", random(2, 9), temperature=one, top_k=one.int(), top_p=one, min_p=one,
            seeds=one.long(), steps=one.long(),
        )  # fmt: skip
