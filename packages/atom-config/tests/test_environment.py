from __future__ import annotations

import pytest

from atom.config import ConfigError, Environment, ParallelConfig, read_environment


def test_without_a_launcher_a_process_is_alone() -> None:
    assert read_environment({}) == Environment()


def test_a_launchers_variables_are_read() -> None:
    variables = {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "12345",
        "UNRELATED": "x",
    }
    assert read_environment(variables) == Environment(3, 1, 4, 2, "node0", 12345)


def test_the_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert read_environment().rank == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RANK", "one"),
        ("RANK", ""),
        ("RANK", "-1"),
        ("RANK", "2"),
        ("RANK", "1.0"),
        ("RANK", "١"),
        ("LOCAL_RANK", "2"),
        ("WORLD_SIZE", "0"),
        ("LOCAL_WORLD_SIZE", "3"),
        ("MASTER_ADDR", " "),
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "70000"),
    ],
)
def test_a_malformed_variable_is_an_error_that_names_it(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_environment({"WORLD_SIZE": "2", name: text})
    assert caught.value.field == f"environment variable {name}"
    assert caught.value.value == text


def test_a_parallel_config_takes_its_place_from_the_environment() -> None:
    sizes = ParallelConfig(tensor_parallel_size=2, data_parallel_size=2)
    here = sizes.at(read_environment({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}))
    assert (here.tensor_parallel_rank, here.data_parallel_rank, here.local_rank) == (1, 1, 1)
    with pytest.raises(ConfigError, match=r"WORLD_SIZE = 1 .* 4: "):
        sizes.at(read_environment({}))
