"""How keys and values of past tokens are kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from atom.config.kinds import Integer, Number, Switch, Word
from atom.config.setting import IN_KEY, about, outside_key
from atom.config.settings import Settings

KV_CACHE_DTYPES = ("auto", "float32", "bfloat16", "float16")
INDEX_CACHE_DTYPES = ("auto", "model", "fp8", "fp4")


@dataclass(frozen=True, kw_only=True)
class KVCacheConfig(Settings):
    """The paged cache: page size, number format and how much memory it gets."""

    block_size: int = field(
        default=16,
        metadata=about("Tokens a block (page) holds.", Integer(at_most=4096), key=IN_KEY),
    )
    gpu_memory_utilization: float = field(
        default=0.9,
        metadata=about(
            "Share of a GPU's memory that weights, graphs and cache may take together.",
            Number(at_most=1.0),
            key=outside_key("sizes the cache, whose length no compiled piece sees"),
        ),
    )
    kv_cache_dtype: str = field(
        default="auto",
        metadata=about(
            "Number format of cached keys and values. auto: the model's own.",
            Word(words=KV_CACHE_DTYPES),
            key=IN_KEY,
        ),
    )
    index_cache_dtype: str = field(
        default="auto",
        metadata=about(
            "Number format of a sparse attention's index keys. auto: fp4 for a checkpoint with quantised "
            "weights, else the model's own.",
            Word(words=INDEX_CACHE_DTYPES),
            key=IN_KEY,
        ),
    )
    enable_prefix_caching: bool = field(
        default=True,
        metadata=about(
            "Reuse blocks of an earlier request that began with the same tokens.",
            Switch(),
            key=outside_key("decides which blocks are computed, not how"),
        ),
    )
    num_kv_blocks: int | None = field(
        default=None,
        metadata=about(
            "Blocks to allocate, the padding block not counted. none: sized from memory.",
            Integer(optional=True),
            key=outside_key("sizes the cache, whose length no compiled piece sees"),
        ),
    )
    kv_cache_memory_bytes: int | None = field(
        default=None,
        metadata=about(
            "Bytes for the cache. none: what gpu_memory_utilization leaves, a fixed default on the CPU.",
            Integer(optional=True),
            key=outside_key("sizes the cache, whose length no compiled piece sees"),
        ),
    )
