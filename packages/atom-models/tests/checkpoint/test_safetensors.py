"""Safetensors files and shards; what a damaged header does is in test_hostile_files.py."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from atom.models.checkpoint.safetensors import open_safetensors
from atom.models.checkpoint.safetensors_header import DTYPES, read_safetensors_header
from atom.models.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

A, B, C = (
    torch.arange(6.0).view(2, 3),
    torch.ones(4, dtype=torch.bfloat16),
    torch.zeros(1, 5, dtype=torch.int64),
)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A folder of two shards with their index."""
    save_file({"a": A, "b": B}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"c": C}, tmp_path / "model-00002-of-00002.safetensors")
    weight_map = dict.fromkeys("ab", "model-00001-of-00002.safetensors")
    write_index(tmp_path, {**weight_map, "c": "model-00002-of-00002.safetensors"})
    return tmp_path


def write_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_one_file_is_read_tensor_by_tensor(tmp_path: Path) -> None:
    save_file({"a": A, "b": B, "c": C}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    source = open_safetensors(tmp_path)
    assert {name: (i.shape, i.dtype, i.nbytes) for name, i in source.tensors.items()} == {
        "a": ((2, 3), "float32", 24),
        "b": ((4,), "bfloat16", 8),
        "c": ((1, 5), "int64", 40),
    }
    for name, expected in (("a", A), ("b", B), ("c", C)):
        assert torch.equal(source.read(name), expected)
        assert source.read(name).dtype == expected.dtype
    assert source.read("b", torch.float32).dtype == torch.float32


def test_shards_are_read_as_one(sharded: Path) -> None:
    source = open_safetensors(sharded)
    assert set(source.tensors) == {"a", "b", "c"}
    assert torch.equal(source.read("c"), C)
    assert torch.equal(source.read("a"), A)


def test_writing_to_a_tensor_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": A}, path)
    before = path.read_bytes()
    open_safetensors(tmp_path).read("a").zero_()
    assert path.read_bytes() == before


def test_the_single_file_wins_over_an_index_as_in_the_public_loaders(sharded: Path) -> None:
    save_file({"only": A}, sharded / "model.safetensors")
    assert set(open_safetensors(sharded).tensors) == {"only"}


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(
        CorruptCheckpointError, match="1 of 2 shards are missing, the first is 'model-00002-of-00002"
    ):
        open_safetensors(sharded)


def test_a_folder_without_weights_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(
        CorruptCheckpointError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"
    ):
        open_safetensors(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({}, "no object 'weight_map'"),
        ([], "no object 'weight_map'"),
        ({"a": 3}, "tensor 'a' is in 3, expected a file name"),
        ({"a": "../x.safetensors"}, "looks like a path"),
        ({"a": "sub/x.safetensors"}, "is not a plain file name in the same folder"),
        ({"a": "/etc/passwd"}, "looks like a path"),
        ({"a\0": "x"}, "control character"),
        (
            {"a": "model-00001-of-00002.safetensors"},
            "tensor 'b' is here, although .*index.json does not say so",
        ),
        (
            {
                **dict.fromkeys("abz", "model-00001-of-00002.safetensors"),
                "c": "model-00002-of-00002.safetensors",
            },
            "tensor 'z' is missing, although .*index.json lists it here",
        ),
        (
            {
                "a": "model-00001-of-00002.safetensors",
                **dict.fromkeys("bc", "model-00002-of-00002.safetensors"),
            },
            "tensor 'b'",
        ),
    ],
)
def test_an_index_that_contradicts_the_shards_is_refused(
    weight_map: object, message: str, sharded: Path
) -> None:
    write_index(sharded, weight_map)
    with pytest.raises(CorruptCheckpointError, match=message):
        open_safetensors(sharded)


def test_a_file_that_changed_after_opening_is_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": A}, path)
    source = open_safetensors(tmp_path)
    path.unlink()
    with pytest.raises(CorruptCheckpointError, match=r"model\.safetensors: tensor 'a' cannot be read"):
        source.read("a")


@pytest.mark.parametrize("stored", DTYPES)
def test_every_number_format_reads_back(
    stored: str, tmp_path: Path, safetensors_bytes: Callable[..., bytes]
) -> None:
    name, item_bytes = DTYPES[stored]
    header = {"t": {"dtype": stored, "shape": [3], "data_offsets": [0, 3 * item_bytes]}}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(json.dumps(header), bytes(3 * item_bytes)))
    source = open_safetensors(tmp_path)
    assert source.tensors["t"].dtype == name
    assert source.read("t").dtype == getattr(torch, name)
    assert source.read("t").shape == (3,)


def test_tensors_come_in_the_order_of_their_data(
    tmp_path: Path, safetensors_bytes: Callable[..., bytes]
) -> None:
    header = {
        "z": {"dtype": "U8", "shape": [2], "data_offsets": [3, 5]},
        "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
    }
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(json.dumps(header), bytes(5)))
    assert list(read_safetensors_header(path)) == ["a", "z"]
