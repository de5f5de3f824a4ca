"""The side channel of a forward pass: what a recorded graph cannot take as an argument.

Set before each forward, read by any layer, reset afterwards. A recorded graph accepts no new arguments, so
the step's metadata (sequence lengths, block tables, slots) travels here, in tensors whose addresses never
change.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from atom.config import Config
    from atom.graphs.dispatch import ForwardMode

TRGraph = Literal["record", "replay"]


@dataclass
class Context:
    """What every layer may want to know of the step.

    `running_bs` counts padded sequences and drives graph lookup and draft width; `running_tokens` counts the
    padded rows of `hidden_states`, which is what MoE pads to before a cross-rank all-gather. Neither follows
    from the other on a prefill or on a ragged decode, so both are stored.
    """

    positions: torch.Tensor
    """Token position ids, int64 `[rows]`."""
    is_prefill: bool = False
    batch_size: int = 0
    running_bs: int = 0
    running_tokens: int = 0
    is_draft: bool = False


@dataclass
class KVCacheTensor:
    """The cache tensors of one layer, by the name of its `CacheSpec`.

    A paged tensor is `[num_blocks, block_size // tokens_per_row, *row_shape]`, a slot tensor
    `[num_slots, rows_per_slot, *row_shape]`. Block 0 and slot 0 belong to padding: no request owns them.
    """

    layer_id: int
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def k_cache(self) -> torch.Tensor:
        return self.tensors["k"]

    @property
    def v_cache(self) -> torch.Tensor:
        return self.tensors["v"]


@dataclass
class StaticForwardContext:
    """What stays the same from step to step; held by whoever owns the model and given to each `set`."""

    no_compile_layers: dict[int, Any] = field(default_factory=dict)
    kv_cache_data: dict[str, KVCacheTensor] = field(default_factory=dict)


@dataclass
class AttentionMetaData:
    """One step's attention metadata; models subclass it for more.

    With `request_bucket` set, every tensor is padded to that bucket, `block_tables` has its full width and
    the bucket-fixed attention body runs: lengths are read from tensors and masked. With `None` the ragged
    body runs, planned from the host lists. Padding rows point into block 0.
    """

    cu_seqlens_q: torch.Tensor
    """int32 `[seqs + 1]`, query rows before each sequence."""
    seq_lens: torch.Tensor
    """int32 `[seqs]`, tokens in the cache once this step's rows are written; 0 for a padding sequence."""
    block_tables: torch.Tensor
    """int32 `[seqs, blocks]`; entries past a sequence's own are 0."""
    slot_mapping: torch.Tensor
    """int64 `[rows]`, `block * block_size + offset`; a padding row points into block 0."""
    max_seqlen_q: int
    max_seqlen_k: int
    request_bucket: tuple[int, int] | None = None
    query_lens_host: list[int] = field(default_factory=list)
    """Query rows of each live sequence."""
    seq_lens_host: list[int] = field(default_factory=list)
    """Cached tokens of each live sequence, this step's included."""


@dataclass(frozen=True)
class DPMetadata:
    """Rows each data-parallel rank runs this step, padding included."""

    num_tokens_across_dp: tuple[int, ...]

    @property
    def max_tokens_across_dp(self) -> int:
        return max(self.num_tokens_across_dp)

    @property
    def cu_tokens_across_dp(self) -> tuple[int, ...]:
        """Rows before the end of each rank's share, in rank order."""
        total, ends = 0, []
        for tokens in self.num_tokens_across_dp:
            total += tokens
            ends.append(total)
        return tuple(ends)


@dataclass
class SpecDecodeMetadata:
    """Which rows of a verifying step carry drafts, and where their logits lie.

    A sequence with `d` drafts runs `d + 1` rows: the token it decodes, then its drafts. Row `i` of those
    predicts what draft `i` proposed, and the last row predicts the bonus token.
    """

    draft_token_ids: torch.Tensor
    """int64 `[drafts]`, sequence after sequence."""
    num_draft_tokens: list[int]
    cu_num_draft_tokens: torch.Tensor
    """int32 `[seqs]`, drafts up to and including each sequence's own."""
    logits_indices: torch.Tensor
    """int64 `[drafts + seqs]`, rows of `hidden_states` whose logits are needed."""
    target_logits_indices: torch.Tensor
    """int64 `[drafts]`, into the computed logits: the row that judges each draft."""
    bonus_logits_indices: torch.Tensor
    """int64 `[seqs]`, into the computed logits: the row behind each sequence's last draft."""

    @classmethod
    def make(
        cls, drafts: Sequence[Sequence[int]], *, device: torch.device | str = "cpu"
    ) -> SpecDecodeMetadata:
        """Metadata of a step in which sequence `i` verifies `drafts[i]`, rows in sequence order."""
        counts = [len(d) for d in drafts]
        target: list[int] = []
        bonus: list[int] = []
        row = ends = 0
        cumulative: list[int] = []
        for count in counts:
            target.extend(range(row, row + count))
            bonus.append(row + count)
            row += count + 1
            ends += count
            cumulative.append(ends)

        def index(values: Sequence[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        return cls(
            draft_token_ids=index([t for d in drafts for t in d]),
            num_draft_tokens=counts,
            cu_num_draft_tokens=index(cumulative, torch.int32),
            logits_indices=index(range(row)),
            target_logits_indices=index(target),
            bonus_logits_indices=index(bonus),
        )


@dataclass
class ForwardContext:
    """Everything a layer can ask for during a forward; an empty one outside of it."""

    no_compile_layers: dict[int, Any] = field(default_factory=dict)
    """Layers by integer id, for custom ops that get only the id."""
    attn_metadata: AttentionMetaData | dict[str, AttentionMetaData] | None = None
    kv_cache_data: dict[str, KVCacheTensor] = field(default_factory=dict)
    context: Context | None = None
    dp_metadata: DPMetadata | None = None
    spec_decode_metadata: SpecDecodeMetadata | None = None
    atom_config: Config | None = None
    forward_mode: ForwardMode | None = None
    tr_graph: TRGraph | None = None
    """What a module marked `@token_graph` does with this forward: run plainly, record, or replay."""
    running_tokens_per_dp_rank: tuple[int, ...] | None = None


_forward_context = ForwardContext()


def get_forward_context() -> ForwardContext:
    """The context of the forward in progress; an empty one outside of any."""
    return _forward_context


def reset_forward_context() -> None:
    """Replaces the context with an empty one."""
    global _forward_context
    _forward_context = ForwardContext()


def set_forward_context(
    attn_metadata: AttentionMetaData | dict[str, AttentionMetaData] | None,
    atom_config: Config | None,
    context: Context | None,
    *,
    static: StaticForwardContext | None = None,
    forward_mode: ForwardMode | None = None,
    tr_graph: TRGraph | None = None,
    running_tokens_per_dp_rank: int | Sequence[int] | None = None,
    dp_metadata: DPMetadata | None = None,
    spec_decode_metadata: SpecDecodeMetadata | None = None,
) -> None:
    """Makes the context of the next forward.

    `tr_graph` given wins; otherwise a `forward_mode` that settled on a token graph means `"replay"`.
    `running_tokens_per_dp_rank` is one number when every rank runs the same rows (recording is symmetric),
    else one a rank; `dp_metadata` is made from it unless given.
    """
    global _forward_context
    if tr_graph is None and forward_mode is not None and forward_mode.token_graph:
        tr_graph = "replay"
    per_rank = _per_rank(running_tokens_per_dp_rank, atom_config)
    if dp_metadata is None and per_rank is not None:
        dp_metadata = DPMetadata(per_rank)
    if static is None:
        static = StaticForwardContext()
    _forward_context = ForwardContext(
        no_compile_layers=static.no_compile_layers,
        attn_metadata=attn_metadata,
        kv_cache_data=static.kv_cache_data,
        context=context,
        dp_metadata=dp_metadata,
        spec_decode_metadata=spec_decode_metadata,
        atom_config=atom_config,
        forward_mode=forward_mode,
        tr_graph=tr_graph,
        running_tokens_per_dp_rank=per_rank,
    )


@contextmanager
def forward_context(
    attn_metadata: AttentionMetaData | dict[str, AttentionMetaData] | None,
    atom_config: Config | None,
    context: Context | None,
    *,
    static: StaticForwardContext | None = None,
    forward_mode: ForwardMode | None = None,
    tr_graph: TRGraph | None = None,
    running_tokens_per_dp_rank: int | Sequence[int] | None = None,
    dp_metadata: DPMetadata | None = None,
    spec_decode_metadata: SpecDecodeMetadata | None = None,
) -> Iterator[ForwardContext]:
    """`set_forward_context` for a `with` block; after it, or its failure, the context before it is back."""
    global _forward_context
    before = _forward_context
    set_forward_context(
        attn_metadata,
        atom_config,
        context,
        static=static,
        forward_mode=forward_mode,
        tr_graph=tr_graph,
        running_tokens_per_dp_rank=running_tokens_per_dp_rank,
        dp_metadata=dp_metadata,
        spec_decode_metadata=spec_decode_metadata,
    )
    try:
        yield _forward_context
    finally:
        _forward_context = before


def _per_rank(tokens: int | Sequence[int] | None, atom_config: Config | None) -> tuple[int, ...] | None:
    if tokens is None:
        return None
    if isinstance(tokens, int):
        ranks = 1 if atom_config is None else atom_config.parallel_config.data_parallel_size
        return (tokens,) * ranks
    return tuple(tokens)
