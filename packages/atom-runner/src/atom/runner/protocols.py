"""What the runner asks of those it works with: model packages, and whoever watches progress.

Everything here is structural: a model package satisfies it without importing the runner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch

    from atom.config import CacheSpec, Config
    from atom.graphs.forward_context import AttentionMetaData


class Progress(Protocol):
    """Hears how far a long task is: `what` names it, `done` of `total` in the task's own unit."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


class TokenizerData(Protocol):
    """A checkpoint's tokenizer; `json` is the text of a `tokenizers` tokenizer.json."""

    @property
    def json(self) -> str: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def bos_token(self) -> str | None: ...
    @property
    def eos_token(self) -> str | None: ...
    @property
    def special_tokens(self) -> Mapping[str, str]: ...
    @property
    def add_bos(self) -> bool: ...


class GenerationDefaults(Protocol):
    """How a checkpoint wants to be sampled."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def sampling(self) -> Mapping[str, float]: ...


@runtime_checkable
class Checkpoint(Protocol):
    """A model on disk, described but not read."""

    @property
    def path(self) -> Path: ...
    @property
    def format(self) -> str: ...
    @property
    def architecture(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def dtype(self) -> str:
        """The dtype the file was saved in, or the sensible one to run it in: `"float32"`, `"bfloat16"`,
        ..."""

    @property
    def nbytes(self) -> int:
        """Bytes of weights in the file."""

    @property
    def tokenizer(self) -> TokenizerData | None: ...
    @property
    def generation(self) -> GenerationDefaults: ...


class StepBatch(Protocol):
    """One step's inputs as a metadata builder sees them.

    Tensors lie in persistent device buffers, long enough for the largest bucket; the builder slices them.
    """

    input_ids: torch.Tensor
    """int64 `[max rows]`; padding rows hold 0."""
    positions: torch.Tensor
    """int64 `[max rows]`; padding rows hold 0."""
    cu_seqlens_q: torch.Tensor
    """int32 `[max seqs + 1]`, query rows before each sequence. Where every live sequence has the same number
    of rows, padding sequences go on in that step, so that they own the padding rows; elsewhere they own
    none."""
    seq_lens: torch.Tensor
    """int32 `[max seqs]`, tokens in the cache once this step's rows are written; 0 for a padding sequence."""
    block_tables: torch.Tensor
    """int32 `[max seqs, blocks of max_model_len]`; entries past a sequence's own are 0."""
    slot_mapping: torch.Tensor
    """int64 `[max rows]`, `block * block_size + offset`; a padding row points into block 0."""
    state_slots: torch.Tensor
    """int32 `[max seqs]`, each sequence's slot in the caches of kind "slot"; 0 for a padding sequence."""
    query_lens_host: Sequence[int]
    """Query rows of each live sequence."""
    seq_lens_host: Sequence[int]
    """As `seq_lens`, of the live sequences."""
    num_seqs: int
    num_tokens: int
    max_seqlen_q: int
    max_seqlen_k: int


class AttnMetadataBuilder(Protocol):
    """Turns a step's inputs into the metadata of the model's attention."""

    def build(
        self,
        batch: Any,  # a StepBatch; Any so that a builder may name its own, wider or narrower, view of it
        *,
        running_bs: int,
        running_tokens: int,
        request_bucket: tuple[int, int] | None,
    ) -> AttentionMetaData:
        """Metadata for `running_bs` sequences in `running_tokens` rows, padding included.

        With a `request_bucket` every tensor is padded to it and the block tables have their full width.
        """


@runtime_checkable
class CausalLM(Protocol):
    """A model with its weights, on its device."""

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states `[rows, hidden]` of int64 `[rows]` inputs; the rest comes from the forward
        context."""

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Float32 logits `[n, vocab]` of hidden states `[n, hidden]`."""

    def kv_cache_spec(self) -> list[CacheSpec]: ...

    @property
    def attention_layers(self) -> Mapping[int, Any]:
        """Layers by integer id, as custom ops look them up; each has a `layer_name`."""

    @property
    def attn_metadata_builder(self) -> AttnMetadataBuilder: ...

    def prefill_token_buckets(self, config: Config) -> list[int]:
        """Row counts worth recording for prefill; empty for a model whose prefill runs eagerly."""


@runtime_checkable
class ModelProvider(Protocol):
    """What an entry point of the group `atom.models` loads to."""

    @property
    def name(self) -> str: ...
    @property
    def architectures(self) -> Mapping[str, Any]: ...

    def open(self, path: Path) -> Checkpoint | None:
        """The checkpoint at `path`; None if it is not of a format of ours.

        Raises:
            ValueError: it is of our format and bad.
        """

    def build(
        self,
        checkpoint: Any,
        atom_config: Config,
        *,
        device: torch.device,
        dtype: torch.dtype,
        progress: Progress | None = None,
    ) -> CausalLM:
        """The model with its weights loaded; `progress` hears bytes read of bytes in all."""
