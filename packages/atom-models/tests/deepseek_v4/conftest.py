"""Tiny DeepSeek-V4s saved by transformers, and a hand-made step loop that stands in for a runner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch

from atom.config import Config, KVCacheConfig, ModelConfig
from atom.graphs.forward_context import Context, KVCacheTensor, StaticForwardContext, forward_context
from atom.models.checkpoint import open_checkpoint
from atom.models.deepseek_v4 import DeepseekV4Config, DeepseekV4ForCausalLM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from atom.config import CompilationConfig

KINDS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
YARN = {
    "rope_type": "yarn",
    "factor": 16,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
}
VOCAB, MAX_LEN, BLOCK = 96, 1024, 128
TINY: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_attention_heads": 4,
    "head_dim": 32,
    "q_lora_rank": 32,
    "num_experts_per_tok": 2,
    "n_routed_experts": 6,
    "o_groups": 2,
    "o_lora_rank": 16,
    "index_n_heads": 16,
    "index_head_dim": 32,
    "index_topk": 8,
    "num_hash_layers": 1,
    "qk_rope_head_dim": 8,
    "max_position_embeddings": MAX_LEN,
    "sliding_window": 16,
    "rope_scaling": YARN,
}


def hf_config(ratios: Sequence[int], **fields: Any) -> dict[str, Any]:
    """Keywords of transformers' configuration for layers of these ratios."""
    return {
        **TINY,
        "num_hidden_layers": len(ratios),
        "layer_types": [KINDS[ratio] for ratio in ratios],
        **fields,
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
    state_slots: torch.Tensor
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
    """Runs a model step by step over caches of its own; block 0 and slot 0 are padding's.

    Blocks of sequences lie between each other, slots run backwards.
    """

    model: DeepseekV4ForCausalLM
    num_seqs: int = 3
    lens: list[int] = field(default_factory=list)
    caches: dict[str, KVCacheTensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.width = MAX_LEN // BLOCK
        blocks = torch.arange(1, self.num_seqs * self.width + 1, dtype=torch.int32)
        self.tables = blocks.view(self.width, self.num_seqs).t().contiguous()
        self.lens = [0] * self.num_seqs
        for spec in self.model.kv_cache_spec():
            rows = spec.rows_per_block(BLOCK) or spec.rows_per_slot
            count = 1 + (blocks.numel() if spec.kind == "paged" else self.num_seqs)
            cache = self.caches.setdefault(spec.layer_name, KVCacheTensor(0))
            dtype = getattr(torch, spec.dtype)
            cache.tensors[spec.name] = torch.zeros((count, rows, *spec.row_shape), dtype=dtype)
        self.static = StaticForwardContext(dict(self.model.attention_layers), self.caches)

    def step(
        self,
        work: Sequence[tuple[int, Sequence[int]]],
        *,
        bucket: tuple[int, int] | None = None,
        rows: int | None = None,
        tr_graph: str | None = None,
    ) -> torch.Tensor:
        """Logits of every live row of `(sequence, token ids)`; padded to `bucket` or `rows`."""
        inputs = self.inputs(work, rows=rows if bucket is None else bucket[0])
        with torch.inference_mode(), self.context(inputs, bucket=bucket, tr_graph=tr_graph):
            hidden = self.model(inputs.input_ids, inputs.positions)
            return self.model.compute_logits(hidden[: sum(inputs.query_lens_host)])

    def context(
        self, inputs: StepInputs, *, bucket: tuple[int, int] | None = None, tr_graph: str | None = None
    ) -> Any:
        metadata = self.model.attn_metadata_builder.build(
            inputs,
            running_bs=inputs.seq_lens.shape[0],
            running_tokens=inputs.input_ids.shape[0],
            request_bucket=bucket,
        )
        context = Context(
            inputs.positions,
            is_prefill=inputs.max_seqlen_q > 1,
            batch_size=len(inputs.query_lens_host),
            running_bs=inputs.seq_lens.shape[0],
        )
        return forward_context(metadata, None, context, static=self.static, tr_graph=tr_graph)  # type: ignore[arg-type]

    def inputs(self, work: Sequence[tuple[int, Sequence[int]]], rows: int | None = None) -> StepInputs:
        """The step's tensors; `rows` pads a decode step with sequences of one row each."""
        ids: list[int] = []
        positions: list[int] = []
        ends, lens = [0], []
        for seq, tokens in work:
            begin = self.lens[seq]
            self.lens[seq] += len(tokens)
            ids += tokens
            positions += range(begin, self.lens[seq])
            ends.append(len(ids))
            lens.append(self.lens[seq])
        padding = 0 if rows is None else rows - len(ids)
        seqs = [seq for seq, _ in work]
        zeros = torch.zeros(padding, self.width, dtype=torch.int32)
        return StepInputs(
            input_ids=torch.tensor(ids + [0] * padding),
            positions=torch.tensor(positions + [0] * padding),
            cu_seqlens_q=torch.tensor(ends + [ends[-1] + 1 + i for i in range(padding)], dtype=torch.int32),
            seq_lens=torch.tensor(lens + [0] * padding, dtype=torch.int32),
            block_tables=torch.cat((self.tables[seqs], zeros)),
            slot_mapping=torch.zeros(len(ids) + padding, dtype=torch.int64),
            state_slots=torch.tensor([self.num_seqs - s for s in seqs] + [0] * padding, dtype=torch.int32),
            query_lens_host=[len(tokens) for _, tokens in work],
            seq_lens_host=lens,
        )

    def generate(self, seq: int, prompt: Sequence[int], count: int) -> tuple[list[int], torch.Tensor]:
        """`count` greedy ids behind a prompt, and logits `[len(prompt) + count - 1, vocab]` on the way."""
        logits = [self.step([(seq, prompt)])]
        answer = [int(logits[0][-1].argmax())]
        while len(answer) < count:
            logits.append(self.step([(seq, answer[-1:])]))
            answer.append(int(logits[-1][-1].argmax()))
        return answer, torch.cat(logits)


@dataclass
class Saved:
    """A checkpoint on disk and the transformers model it came from."""

    path: Path
    reference: Any

    def load(self, *, compilation: CompilationConfig | None = None, **cache: Any) -> DeepseekV4ForCausalLM:
        """The same model, loaded by us; `cache` are settings of `KVCacheConfig`."""
        checkpoint = open_checkpoint(self.path)
        assert checkpoint is not None
        config = Config(
            str(self.path),
            model_config=ModelConfig(dtype="float32", device="cpu", max_model_len=MAX_LEN),
            kv_cache_config=KVCacheConfig(block_size=BLOCK, **cache),
            **({} if compilation is None else {"compilation_config": compilation}),
        )
        model = DeepseekV4ForCausalLM(
            DeepseekV4Config.from_hf(checkpoint.config),
            atom_config=config,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        model.load_weights(checkpoint)
        return model

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """The reference's `[len(ids), vocab]` of one sequence, without a cache."""
        with torch.inference_mode():
            logits: torch.Tensor = self.reference(torch.tensor([list(ids)]), use_cache=False).logits[0]
        return logits


def randomise(reference: Any) -> None:
    """Weights far from what initialisation gives: norms of ones and tables of zeros would hide a mix-up."""
    generator = torch.Generator().manual_seed(1)
    for parameter in reference.parameters():
        parameter.data.normal_(0.0, 0.2, generator=generator)
    for name, buffer in reference.named_buffers():
        if name.endswith("tid2eid"):
            buffer.random_(0, reference.config.n_routed_experts, generator=generator)
        elif name.endswith("e_score_correction_bias"):
            buffer.normal_(0.0, 0.1, generator=generator)


@pytest.fixture(scope="session")
def save_v4(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Saved]:
    """Saves a small random DeepSeek-V4 as transformers does; equal fields give the same one."""
    from transformers import DeepseekV4Config as HfConfig
    from transformers import DeepseekV4ForCausalLM as HfModel

    known: dict[str, Saved] = {}

    def save(ratios: Sequence[int], **fields: Any) -> Saved:
        key = repr((list(ratios), sorted(fields.items())))
        if key not in known:
            reference = HfModel(HfConfig(**hf_config(ratios, **fields))).eval()
            randomise(reference)
            path = tmp_path_factory.mktemp("deepseek_v4")
            reference.save_pretrained(path)
            known[key] = Saved(path, reference)
        return known[key]

    return save


@pytest.fixture
def step_loop() -> type[StepLoop]:
    return StepLoop


@pytest.fixture
def prompt_of() -> Callable[..., list[int]]:
    """A random prompt of a length."""

    def make(length: int, seed: int = 0) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(VOCAB, (length,), generator=generator).tolist()

    return make
