"""Tiny Llamas saved by transformers, and a hand-made step loop that stands in for a runner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch

from atom.config import Config, KVCacheConfig, ModelConfig
from atom.graphs.forward_context import Context, KVCacheTensor, StaticForwardContext, forward_context
from atom.models.checkpoint import open_checkpoint
from atom.models.llama import LlamaForCausalLM
from atom.models.mistral import MistralForCausalLM
from atom.models.mixtral import MixtralForCausalLM
from atom.models.qwen3 import Qwen3ForCausalLM
from atom.models.qwen3_moe import Qwen3MoeForCausalLM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass
class StepInputs:
    """A step's tensors as a runner's batch holds them."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    query_lens_host: list[int]
    seq_lens_host: list[int]

    @property
    def max_seqlen_q(self) -> int:
        return max(self.query_lens_host, default=0)

    @property
    def max_seqlen_k(self) -> int:
        return max(self.seq_lens_host, default=0)


@dataclass
class StepLoop:
    """Runs a model step by step over a paged cache of its own; block 0 is padding's."""

    model: LlamaForCausalLM
    max_len: int = 128
    num_seqs: int = 4
    block_size: int = 4
    scattered: bool = True
    """Whether a sequence's blocks lie apart, as in a cache that several sequences fill together."""
    lens: list[int] = field(default_factory=list)
    caches: dict[str, KVCacheTensor] = field(default_factory=dict)
    hidden: torch.Tensor | None = None
    """Hidden states of the last step, padding rows included."""

    def __post_init__(self) -> None:
        self.width = -(-self.max_len // self.block_size)
        blocks = torch.arange(1, self.num_seqs * self.width + 1, dtype=torch.int32)
        shape = (self.width, self.num_seqs) if self.scattered else (self.num_seqs, self.width)
        self.tables = (blocks.view(shape).t() if self.scattered else blocks.view(shape)).contiguous()
        self.lens = [0] * self.num_seqs
        for spec in self.model.kv_cache_spec():
            shape = (blocks.numel() + 1, self.block_size, *spec.row_shape)
            cache = self.caches.setdefault(spec.layer_name, KVCacheTensor(0))
            cache.tensors[spec.name] = torch.zeros(shape, dtype=getattr(torch, spec.dtype))
        self.static = StaticForwardContext(dict(self.model.attention_layers), self.caches)

    def step(
        self,
        work: Sequence[tuple[int, Sequence[int]]],
        *,
        bucket: tuple[int, int] | None = None,
        rows: int | None = None,
        tr_graph: str | None = None,
    ) -> torch.Tensor:
        """Logits behind the last token of each `(sequence, token ids)`; padded to `bucket` or `rows`."""
        inputs = self._inputs(work, bucket, rows)
        running_bs = len(work) if bucket is None else bucket[0]
        metadata = self.model.attn_metadata_builder.build(
            inputs, running_bs=running_bs, running_tokens=inputs.input_ids.shape[0], request_bucket=bucket
        )
        context = Context(inputs.positions, batch_size=len(work), running_bs=running_bs)
        with (
            torch.inference_mode(),
            forward_context(metadata, None, context, static=self.static, tr_graph=tr_graph),  # type: ignore[arg-type]
        ):
            hidden = self.hidden = self.model(inputs.input_ids, inputs.positions)
            ends = torch.tensor(inputs.query_lens_host, dtype=torch.int64).cumsum(0) - 1
            return self.model.compute_logits(hidden[ends])

    def _inputs(
        self, work: Sequence[tuple[int, Sequence[int]]], bucket: tuple[int, int] | None, rows: int | None
    ) -> StepInputs:
        ids, positions, slots, ends, lens = [], [], [], [0], []
        for seq, tokens in work:
            begin = self.lens[seq]
            self.lens[seq] += len(tokens)
            ids += tokens
            positions += range(begin, self.lens[seq])
            ends.append(len(ids))
            lens.append(self.lens[seq])
        table = self.tables[torch.tensor([seq for seq, _ in work], dtype=torch.int64)]
        for row, (seq, _) in enumerate(work):
            for position in positions[ends[row] : ends[row + 1]]:
                block = int(self.tables[seq, position // self.block_size])
                slots.append(block * self.block_size + position % self.block_size)
        query_lens = [len(tokens) for _, tokens in work]
        if bucket is not None:
            rows = bucket[0] * (bucket[1] + 1)
            missing = bucket[0] - len(work)
            table = torch.cat((table, torch.zeros(missing, self.width, dtype=torch.int32)))
            ends += [min(ends[-1] + (i + 1) * (bucket[1] + 1), rows) for i in range(missing)]
        padding = 0 if rows is None else rows - len(ids)
        return StepInputs(
            input_ids=torch.tensor(ids + [0] * padding),
            positions=torch.tensor(positions + [0] * padding),
            cu_seqlens_q=torch.tensor(ends, dtype=torch.int32),
            seq_lens=torch.tensor(lens + [0] * (table.shape[0] - len(work)), dtype=torch.int32),
            block_tables=table,
            slot_mapping=torch.tensor(slots + [i % self.block_size for i in range(padding)]),
            query_lens_host=query_lens,
            seq_lens_host=lens,
        )


def greedy(loop: StepLoop, prompts: Sequence[Sequence[int]], count: int, **padding: Any) -> list[list[int]]:
    """`count` greedy ids behind each prompt, all prompts together."""
    answers: list[list[int]] = [[] for _ in prompts]
    work = list(enumerate(prompts))
    for step in range(count):
        logits = loop.step(work, **({} if step == 0 else padding))
        for answer, token in zip(answers, logits.argmax(-1).tolist(), strict=True):
            answer.append(token)
        work = [(seq, answer[-1:]) for seq, answer in enumerate(answers)]
    return answers


@dataclass
class Saved:
    """A checkpoint on disk and the transformers model it came from."""

    path: Path
    reference: Any
    model_class: type[LlamaForCausalLM] = LlamaForCausalLM

    def load(
        self,
        dtype: torch.dtype = torch.float32,
        progress: Callable[[int, int], None] | None = None,
        cache: str = "auto",
        **settings: Any,
    ) -> LlamaForCausalLM:
        """The same model, loaded by us; `settings` are those of `ModelConfig`, `cache` the cache's dtype."""
        checkpoint = open_checkpoint(self.path)
        assert checkpoint is not None
        config = Config(
            str(self.path),
            model_config=ModelConfig(**settings),
            kv_cache_config=KVCacheConfig(kv_cache_dtype=cache),
        )
        model = self.model_class(
            self.model_class.config_class.from_hf(checkpoint.config),
            atom_config=config,
            dtype=dtype,
            device=torch.device("cpu"),
        )
        model.load_weights(checkpoint, progress)
        return model

    def reference_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """`[len(ids), vocab]` of one sequence, no cache."""
        with torch.inference_mode():
            logits: torch.Tensor = self.reference(torch.tensor([list(ids)])).logits[0]
        return logits

    def reference_greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(self.reference_logits(ids)[-1].argmax()))
        return ids[len(prompt) :]


@pytest.fixture
def save_llama(tmp_path: Path) -> Callable[..., Saved]:
    """Saves a small random Llama as transformers does."""
    from transformers import LlamaConfig as HfConfig
    from transformers import LlamaForCausalLM as HfLlama

    def save(**fields: Any) -> Saved:
        torch.manual_seed(0)
        reference = HfLlama(HfConfig(**{**TINY, **fields})).eval()
        for parameter in reference.parameters():  # norms of ones and biases of zero would hide a mix-up
            parameter.data.normal_(0.0, 0.3)
        reference.save_pretrained(tmp_path / "llama")
        return Saved(tmp_path / "llama", reference)

    return save


@pytest.fixture(params=["mistral", "qwen3", "mixtral", "qwen3_moe"])
def save_relative(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Saved]:
    """Saves a small random model of Llama's shape, each of them, as transformers does."""
    import transformers

    hf_config, hf_class, ours = {
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM, MistralForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, Qwen3ForCausalLM),
        "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM, MixtralForCausalLM),
        "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM, Qwen3MoeForCausalLM),
    }[request.param]
    experts = {
        "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2},
        "qwen3_moe": {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
        },
    }.get(request.param, {})

    def save(**fields: Any) -> Saved:
        torch.manual_seed(0)
        reference = hf_class(hf_config(**{**TINY, "head_dim": 16, **experts, **fields})).eval()
        for parameter in reference.parameters():
            parameter.data.normal_(0.0, 0.3)
        reference.save_pretrained(tmp_path / request.param)
        return Saved(tmp_path / request.param, reference, ours)

    return save


@pytest.fixture
def step_loop() -> Callable[..., StepLoop]:
    return StepLoop


@pytest.fixture
def generate() -> Callable[..., list[list[int]]]:
    return greedy
