from __future__ import annotations

import pytest

from atom.config import ConfigError, ParallelConfig


def test_ranks_put_tensor_parallel_neighbours_next_to_one_another() -> None:
    places = [
        (place.data_parallel_rank, place.tensor_parallel_rank)
        for place in (
            ParallelConfig(tensor_parallel_size=2, data_parallel_size=3, rank=rank) for rank in range(6)
        )
    ]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


def test_a_rank_must_be_below_the_number_of_processes() -> None:
    with pytest.raises(ConfigError, match=r"ParallelConfig.rank = 2 .* 0 to 1"):
        ParallelConfig(tensor_parallel_size=2, rank=2)


@pytest.mark.parametrize("field", ["tensor_parallel_size", "data_parallel_size"])
def test_a_size_below_one_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"ParallelConfig.{field} = 0 .* at least 1"):
        ParallelConfig(**{field: 0})  # type: ignore[arg-type]
