"""A real but tiny transformer with a paged cache, and engines around it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from atom.config import CacheSpec, CompilationConfig, Config, KVCacheConfig, ModelConfig
from atom.graphs.forward_context import AttentionMetaData, get_forward_context
from atom.graphs.region_graph import eager_region, token_graph
from atom.runner import LLMEngine

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, MAX_LEN = 97, 32, 4, 2, 8, 2, 256


class TinyMetadataBuilder:
    """Metadata as any model would build it: slices of the step's buffers."""

    def build(self, batch, *, running_bs, running_tokens, request_bucket):
        return AttentionMetaData(
            cu_seqlens_q=batch.cu_seqlens_q[: running_bs + 1],
            seq_lens=batch.seq_lens[:running_bs],
            block_tables=batch.block_tables[:running_bs],
            slot_mapping=batch.slot_mapping[:running_tokens],
            max_seqlen_q=batch.max_seqlen_q,
            max_seqlen_k=batch.max_seqlen_k,
            request_bucket=request_bucket,
            query_lens_host=batch.query_lens_host,
            seq_lens_host=batch.seq_lens_host,
        )


class TinyAttention(nn.Module):
    """Rotary attention over the paged cache, one sequence after the other."""

    def __init__(self, layer_id: int) -> None:
        super().__init__()
        self.layer_id, self.layer_name = layer_id, f"layers.{layer_id}"
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)

    def project(self, x: torch.Tensor, positions: torch.Tensor):
        q, k, v = self.qkv(x).split([HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM], dim=-1)
        q, k = (rotate(t.unflatten(-1, (-1, HEAD_DIM)), positions) for t in (q, k))
        return q, k, v.unflatten(-1, (-1, HEAD_DIM))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x, positions)
        return self.out(self.attend(q, k, v).flatten(1))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        forward_context = get_forward_context()
        metadata: Any = forward_context.attn_metadata
        cache = forward_context.kv_cache_data[self.layer_name]
        cache.k_cache.flatten(0, 1)[metadata.slot_mapping] = k
        cache.v_cache.flatten(0, 1)[metadata.slot_mapping] = v
        body = ragged_attention if metadata.request_bucket is None else bucket_attention
        return body(q, cache.k_cache, cache.v_cache, metadata)


def ragged_attention(q, k_cache, v_cache, metadata):
    """Planned from the step's host lists, one sequence after the other; padding rows get zeros."""
    output, block_size, row = torch.zeros_like(q), k_cache.shape[1], 0
    for i, (query_len, seq_len) in enumerate(
        zip(metadata.query_lens_host, metadata.seq_lens_host, strict=True)
    ):
        places = torch.arange(seq_len)
        slots = metadata.block_tables[i][places // block_size].long() * block_size + places % block_size
        rows = slice(row, row + query_len)
        keys, values = k_cache.flatten(0, 1)[slots], v_cache.flatten(0, 1)[slots]
        output[rows] = causal_attention(q[rows], keys, values)
        row += query_len
    return output


def bucket_attention(q, k_cache, v_cache, metadata):
    """Shapes from the bucket and the table's width, lengths from tensors: a bucket's work never changes."""
    running_bs = metadata.request_bucket[0]
    query = q.unflatten(0, (running_bs, -1)).transpose(1, 2)  # [bs, heads, rows, head_dim]
    tables = metadata.block_tables.long()
    k, v = (
        cache[tables].flatten(1, 2).repeat_interleave(HEADS // KV_HEADS, dim=2).transpose(1, 2)
        for cache in (k_cache, v_cache)
    )
    places, rows = torch.arange(k.shape[2]), torch.arange(query.shape[2])
    last = (metadata.seq_lens[:, None] - query.shape[2] + rows)[:, None, :, None]  # what each row may see
    scores = query @ k.transpose(2, 3) / HEAD_DIM**0.5
    scores = scores.masked_fill(places > last.clamp(min=0), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(0, 1)


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    angle = positions[:, None] * 100.0 ** -torch.linspace(0, 1, HEAD_DIM // 2)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The last rows of `k` and `v` belong to the rows of `q`."""
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1).transpose(0, 1) for t in (k, v))
    scores = q.transpose(0, 1) @ k.transpose(1, 2) / HEAD_DIM**0.5
    hidden = torch.ones(q.shape[0], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[0]).logical_not()
    return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(0, 1)


class TinyLM(nn.Module):
    """Satisfies the runner's `CausalLM`."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.attention = nn.ModuleList(TinyAttention(i) for i in range(LAYERS))
        self.mlp = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)
        with torch.no_grad():  # far from uniform answers
            self.head.weight.mul_(8)
        self.requires_grad_(False)
        self._known: dict[tuple[int, ...], list[int]] = {}
        self.attention_layers = dict(enumerate(self.attention))
        self.attn_metadata_builder = TinyMetadataBuilder()

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            x = x + attention(F.layer_norm(x, (HIDDEN,)), positions)
            x = x + F.silu(mlp(F.layer_norm(x, (HIDDEN,))))
        return F.layer_norm(x, (HIDDEN,))

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.head(hidden_states).float()

    def kv_cache_spec(self) -> list[CacheSpec]:
        return [
            CacheSpec(layer.layer_name, name, "paged", (KV_HEADS, HEAD_DIM), "float32")
            for layer in self.attention
            for name in ("k", "v")
        ]

    def prefill_token_buckets(self, config: Config) -> list[int]:
        return []

    def dense_logits(self, token_ids: list[int]) -> torch.Tensor:
        """Logits `[tokens, vocab]` without any cache: what every paged run must agree with."""
        positions = torch.arange(len(token_ids))
        x = self.embed(torch.tensor(token_ids))
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            q, k, v = attention.project(F.layer_norm(x, (HIDDEN,)), positions)
            x = x + attention.out(causal_attention(q, k, v).flatten(1))
            x = x + F.silu(mlp(F.layer_norm(x, (HIDDEN,))))
        return self.head(F.layer_norm(x, (HIDDEN,)))

    def dense_greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        """The greedy answer, computed from scratch for every token."""
        tokens = self._known.setdefault(tuple(prompt), list(prompt))
        while len(tokens) < len(prompt) + num_tokens:
            tokens.append(int(self.dense_logits(tokens)[-1].argmax()))
        return tokens[len(prompt) : len(prompt) + num_tokens]


@token_graph
class MarkedLM(TinyLM):
    """The same model as a recording unit, whose attention is an eager region."""

    def __init__(self, *, bucket_fixed: bool = False, prefill_buckets: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.prefill_buckets = list(prefill_buckets)
        for layer in self.attention:
            layer.attend = eager_region(layer.attend, bucket_fixed=bucket_fixed)

    def prefill_token_buckets(self, config: Config) -> list[int]:
        return self.prefill_buckets


@pytest.fixture(scope="session")
def tiny_lm() -> TinyLM:
    return TinyLM()


@pytest.fixture
def make_marked_lm():
    return MarkedLM


@pytest.fixture
def make_config():
    """A configuration for small engines; keywords of any of its parts."""

    def make(
        *,
        num_kv_blocks: int | None = 64,
        block_size: int = 4,
        enable_prefix_caching: bool = True,
        max_model_len: int | None = None,
        compilation: CompilationConfig | None = None,
        **fields: Any,
    ) -> Config:
        fields.setdefault("max_num_seqs", 8)
        fields.setdefault("max_num_batched_tokens", 32)
        return Config(
            "tiny",
            model_config=ModelConfig(device="cpu", max_model_len=max_model_len),
            kv_cache_config=KVCacheConfig(
                block_size=block_size,
                num_kv_blocks=num_kv_blocks,
                enable_prefix_caching=enable_prefix_caching,
            ),
            compilation_config=compilation or CompilationConfig(),
            **fields,
        )

    return make


@pytest.fixture
def make_engine(tiny_lm: TinyLM, make_config):
    """An engine around the tiny model."""

    def make(
        *,
        model: TinyLM | None = None,
        eos_token_ids: tuple[int, ...] = (),
        tokenizer: Any = None,
        progress: Any = None,
        **settings: Any,
    ) -> LLMEngine:
        return LLMEngine.from_model(
            make_config(**settings),
            model or tiny_lm,
            progress=progress,
            vocab_size=VOCAB,
            max_model_len=MAX_LEN,
            eos_token_ids=eos_token_ids,
            tokenizer=tokenizer,
        )

    return make


@pytest.fixture
def prompts() -> list[list[int]]:
    """Twelve prompts of 1 to 41 tokens."""
    generator = torch.Generator().manual_seed(7)
    lengths = [1, 2, 3, 4, 5, 8, 13, 16, 17, 23, 32, 41]
    return [torch.randint(VOCAB, (n,), generator=generator).tolist() for n in lengths]
