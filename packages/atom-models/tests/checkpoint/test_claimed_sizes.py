from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from atom.models.checkpoint.claimed_sizes import check_claimed_sizes
from atom.models.checkpoint.hf_folder import open_hf_folder
from atom.models.errors import ModelConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def check(save_llama: Callable[..., Any]) -> Callable[..., None]:
    """Saves a Llama of 2 layers whose largest dimension is 96, changes its configuration, and checks it."""

    def check_(**changes: Any) -> None:
        folder, _, _ = save_llama()
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        check_claimed_sizes(open_hf_folder(folder))

    return check_


def test_a_configuration_that_fits_or_almost_fits_passes(check: Callable[..., None]) -> None:
    check()
    check(intermediate_size=95)
    check(num_hidden_layers=1)
    check(intermediate_size="many")
    check(max_position_embeddings=10_485_760)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000, but no tensor has a dimension above 96"),
        ({"intermediate_size": 97}, "intermediate_size is 97"),
        ({"vocab_size": 2**63}, "vocab_size is 9223372036854775808"),
        ({"num_attention_heads": 64, "head_dim": 64}, "num_attention_heads x head_dim is 4096"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, but there are tensors of 2 layers"),
        ({"max_position_embeddings": 2**40}, "max_position_embeddings is 1099511627776, more than 16777216"),
    ],
)
def test_a_claim_that_nothing_could_fill_is_refused(
    changes: dict[str, Any], message: str, check: Callable[..., None]
) -> None:
    with pytest.raises(ModelConfigError, match=message):
        check(**changes)
