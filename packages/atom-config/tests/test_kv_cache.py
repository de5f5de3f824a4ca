from __future__ import annotations

import math

import pytest

from atom.config import ConfigError, KVCacheConfig


@pytest.mark.parametrize("share", [0, 0.0, -0.1, 1.01, math.nan, math.inf, True, "0.9"])
def test_a_share_of_memory_lies_above_zero_and_at_most_at_one(share: float) -> None:
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        KVCacheConfig(gpu_memory_utilization=share)


def test_the_whole_memory_is_a_share() -> None:
    assert KVCacheConfig(gpu_memory_utilization=1).gpu_memory_utilization == 1.0


@pytest.mark.parametrize("field", ["block_size", "num_kv_blocks", "kv_cache_memory_bytes"])
def test_sizes_are_at_least_one(field: str) -> None:
    with pytest.raises(ConfigError, match=f"KVCacheConfig.{field} = 0"):
        KVCacheConfig(**{field: 0})  # type: ignore[arg-type]
