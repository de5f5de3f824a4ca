from __future__ import annotations

import pytest

from atom.config import ConfigError, SpeculativeConfig


def test_mtp_k_is_the_number_of_drafted_tokens() -> None:
    assert SpeculativeConfig(num_speculative_tokens=3).mtp_k == 3


@pytest.mark.parametrize("wrong", [0, -1, 65, True, "3"])
def test_a_number_of_tokens_that_cannot_be_is_refused(wrong: int) -> None:
    with pytest.raises(ConfigError, match="from 1 to 64"):
        SpeculativeConfig(num_speculative_tokens=wrong)
