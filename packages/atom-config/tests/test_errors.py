from __future__ import annotations

import pickle

from atom.config import ConfigError


def test_the_message_is_one_line_with_field_value_and_what_is_allowed() -> None:
    error = ConfigError("Config.x", "a\nb", "c")
    assert isinstance(error, ValueError)
    assert str(error) == r"Config.x = 'a\nb' is not allowed; allowed: c"


def test_a_long_value_is_shortened_in_the_message_and_whole_in_the_attribute() -> None:
    error = ConfigError("f", list(range(1000)), "few")
    assert len(str(error)) < 220
    assert error.value == list(range(1000))


def test_an_error_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("f", 1, "2")))
    assert (error.field, error.value, error.allowed) == ("f", 1, "2")
