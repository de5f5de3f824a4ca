from __future__ import annotations

from typing import Any

import pytest

from atom.config import CacheSpec, ConfigError


def spec(**changes: Any) -> CacheSpec:
    return CacheSpec(
        **{
            "layer_name": "layers.0",
            "name": "k",
            "kind": "paged",
            "row_shape": (3, 64),
            "dtype": "bfloat16",
            **changes,
        }
    )


def test_a_paged_tensor_takes_its_rows_times_their_bytes() -> None:
    assert spec().bytes_per_block(16) == 16 * 3 * 64 * 2
    assert spec().bytes_per_slot() == 0


def test_a_compressed_row_stands_for_several_tokens() -> None:
    compressed = spec(tokens_per_row=4, dtype="float8_e4m3fn")
    assert compressed.rows_per_block(128) == 32
    assert compressed.bytes_per_block(128) == 32 * 3 * 64


def test_a_block_that_cuts_a_row_is_refused_by_field_and_layer() -> None:
    with pytest.raises(ConfigError, match=r"KVCacheConfig.block_size = 6 .* multiple of 4.*layers.0.k"):
        spec(tokens_per_row=4).bytes_per_block(6)


def test_a_slot_tensor_takes_the_same_bytes_whatever_the_length() -> None:
    slot = spec(kind="slot", rows_per_slot=128, row_shape=(), dtype="float32")
    assert slot.bytes_per_slot() == 512
    assert slot.bytes_per_block(16) == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "ring"),
        ("dtype", "fp8"),
        ("row_shape", (0, 64)),
        ("row_shape", (1.5,)),
        ("tokens_per_row", 0),
        ("rows_per_slot", 4),
    ],
)
def test_a_specification_that_cannot_be_is_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"CacheSpec\(layers.0.k\).{field} = "):
        spec(**{field: value})


def test_a_slot_tensor_without_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1 for a slot cache"):
        spec(kind="slot")
