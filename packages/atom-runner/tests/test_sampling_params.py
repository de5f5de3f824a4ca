"""Settings out of range are errors that say what is allowed."""

from __future__ import annotations

import pytest

from atom.runner import RequestError, SamplingParams, SamplingParamsError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, "temperature=-0.1: must be 0 or a positive number"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"temperature": "hot"}, "temperature='hot'"),
        ({"top_k": -1}, "top_k=-1: must be 0 (keep all) or a positive whole number"),
        ({"top_k": 1.5}, "top_k=1.5: must be 0 (keep all) or a positive whole number"),
        ({"top_p": 0}, "top_p=0: must be above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"min_p": -0.5}, "min_p=-0.5: must be between 0 and 1"),
        ({"repetition_penalty": 0}, "repetition_penalty=0: must be a positive number"),
        ({"max_tokens": 0}, "max_tokens=0: must be at least 1"),
        ({"max_tokens": 2.5}, "max_tokens=2.5: must be at least 1 and a whole number"),
        ({"max_tokens": True}, "max_tokens=True"),
        ({"max_tokens": None}, "max_tokens=None"),
        ({"seed": 1.0}, "seed=1.0: must be a whole number or None"),
        ({"stop": [""]}, "stop=['']: must be non-empty strings"),
        ({"stop": [3]}, "stop=[3]: must be non-empty strings"),
        ({"stop_token_ids": [-1]}, "stop_token_ids=[-1]: must be token ids, 0 or above"),
        ({"stop": 5}, "stop=5: must be non-empty strings"),
        ({"stop": {"a": 1}}, "stop={'a': 1}: must be non-empty strings"),
        ({"stop": None}, "stop=None: must be non-empty strings"),
        ({"stop_token_ids": 3}, "stop_token_ids=3: must be token ids, 0 or above"),
        ({"stop_token_ids": "12"}, "stop_token_ids='12': must be token ids, 0 or above"),
        ({"temperature": 10**400}, "must be 0 or a positive number up to 3.4e38"),
        ({"temperature": 1e300}, "temperature=1e+300: must be 0 or a positive number up to 3.4e38"),
        ({"repetition_penalty": 10**400}, "must be a positive number up to 3.4e38"),
        ({"top_k": 2**70}, "top_k=1180591620717411303424: must be 0 (keep all)"),
        ({"ignore_eos": "yes"}, "ignore_eos='yes': must be true or false"),
    ],
)
def test_a_value_out_of_range_names_field_value_and_range(settings, message):
    with pytest.raises(SamplingParamsError) as caught:
        SamplingParams(**settings)
    assert message in str(caught.value)
    assert isinstance(caught.value, RequestError)
    assert isinstance(caught.value, ValueError)


def test_one_stop_string_is_a_list_of_one():
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[3]).stop_token_ids == (3,)


def test_a_huge_value_does_not_fill_the_message():
    with pytest.raises(SamplingParamsError) as caught:
        SamplingParams(temperature=10**4000, stop=["x" * 10**6])
    assert len(str(caught.value)) < 200


def test_greedy_is_temperature_0():
    assert SamplingParams().greedy
    assert not SamplingParams(temperature=0.01).greedy
