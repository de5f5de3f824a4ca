"""How one ragged step is cut into attention calls: planned on the host, once a step, for all layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom.models.layers.errors import AttentionSetupError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atom.graphs.forward_context import AttentionMetaData

_SHORT_BLOCKS = 8
"""Sequences of up to so many blocks are not worth a call of their own."""
_SHORT_QUERY = 16
"""Sequences with equally many rows share a call up to so many: those that decode, or verify drafts."""


@dataclass(frozen=True)
class SequenceGroup:
    """Sequences with equally many query rows that attend in one call."""

    num_seqs: int
    query_len: int
    rows: slice | torch.Tensor
    """The group's rows, sequence after sequence: a slice where they lie together."""
    keys: slice | torch.Tensor
    """Where the keys are: cached tokens that lie together, or numbers of blocks `[seqs * blocks]`."""
    key_len: int
    mask: torch.Tensor | None
    """Added to the scores, `[seqs, 1, query_len, key_len]`; None where every key counts, or with `whole`."""
    whole: bool = False
    """Whether it is one prompt from its beginning: plainly causal, and this step's own rows are its keys."""
    covers_all: bool = False
    """Whether its rows are all live rows of the step, in order."""


@dataclass(frozen=True)
class PagedGroup:
    """Sequences with equally few query rows, whatever their lengths, for the kernel that reads pages."""

    query_len: int
    rows: slice | torch.Tensor
    """As in `SequenceGroup`."""
    block_tables: torch.Tensor
    """int32 `[seqs, width]`."""
    seq_lens: torch.Tensor
    """int32 `[seqs]`."""


@dataclass(frozen=True)
class RaggedPlan:
    """The calls of one step, and what they were planned for."""

    groups: tuple[SequenceGroup | PagedGroup, ...]
    num_rows: int
    """Live rows; those after them are padding."""
    block_size: int
    dtype: torch.dtype
    paged: bool


def plan_ragged(
    metadata: AttentionMetaData, *, block_size: int, dtype: torch.dtype, paged: bool = False
) -> RaggedPlan:
    """Group the step's sequences by query rows and, where it pays, by length.

    Sequences that decode share a call, padded to the longest of them; a prompt chunk is a call of its own.
    With `paged` there is a kernel for few rows a sequence, which needs no grouping by length.
    `dtype` is that of the queries. Reads the host lists, on a CPU also the block tables.

    Raises:
        AttentionSetupError: the host lists contradict each other or the tensors.
    """
    query_lens, seq_lens = metadata.query_lens_host, metadata.seq_lens_host
    _check_lengths(metadata)
    planner = _Planner(metadata, block_size, dtype)
    groups = tuple(
        planner.paged(members) if paged and query_lens[members[0]] <= _SHORT_QUERY else planner.group(members)
        for members in _members(query_lens, seq_lens, block_size, any_length=paged)
    )
    return RaggedPlan(groups, sum(query_lens), block_size, dtype, paged)


def _check_lengths(metadata: AttentionMetaData) -> None:
    query_lens, seq_lens = metadata.query_lens_host, metadata.seq_lens_host
    if len(query_lens) != len(seq_lens) or any(
        not 0 <= query <= total for query, total in zip(query_lens, seq_lens, strict=True)
    ):
        raise AttentionSetupError(
            f"attention metadata: query_lens_host {query_lens} and seq_lens_host {seq_lens} are of no step"
        )
    if len(query_lens) > metadata.block_tables.shape[0] or sum(query_lens) > metadata.slot_mapping.shape[0]:
        raise AttentionSetupError(
            f"attention metadata: {len(query_lens)} sequences of {sum(query_lens)} rows, but block_tables is "
            f"{list(metadata.block_tables.shape)} and slot_mapping {list(metadata.slot_mapping.shape)}"
        )


def _members(
    query_lens: list[int], seq_lens: list[int], block_size: int, *, any_length: bool
) -> Iterator[list[int]]:
    """Sequence numbers of each group. Sequences without a row are in none."""
    short: dict[int, list[int]] = {}
    for i, query_len in enumerate(query_lens):
        if query_len > _SHORT_QUERY:
            yield [i]
        elif query_len > 0:
            short.setdefault(query_len, []).append(i)
    for members in short.values():
        lens = [seq_lens[i] for i in members]
        if any_length or max(lens) <= max(2 * min(lens), _SHORT_BLOCKS * block_size):
            yield members
            continue
        # Where lengths differ much, padding all to the longest costs more than another call.
        by_length: dict[int, list[int]] = {}
        for i in members:
            blocks = -(-seq_lens[i] // block_size)
            by_length.setdefault(max(_SHORT_BLOCKS, blocks - 1).bit_length(), []).append(i)
        yield from by_length.values()


class _Planner:
    def __init__(self, metadata: AttentionMetaData, block_size: int, dtype: torch.dtype) -> None:
        self.metadata = metadata
        self.block_size = block_size
        self.dtype = dtype
        self.device = metadata.block_tables.device
        self.row_ends = torch.tensor(metadata.query_lens_host, dtype=torch.int64).cumsum(0).tolist()

    def group(self, members: list[int]) -> SequenceGroup:
        query_len = self.metadata.query_lens_host[members[0]]
        lens = [self.metadata.seq_lens_host[i] for i in members]
        rows = self._rows(members, query_len)
        covers_all = isinstance(rows, slice) and rows == slice(0, self.row_ends[-1])
        keys = self._keys(members, max(lens))
        whole = len(members) == 1 and query_len == lens[0] > 1
        # Gathered keys come in whole blocks; a single sequence's are cut to its length.
        in_blocks = -(-max(lens) // self.block_size) * self.block_size
        key_len = max(lens) if len(members) == 1 else in_blocks
        mask = None if whole else self._mask(lens, query_len, key_len)
        return SequenceGroup(len(members), query_len, rows, keys, key_len, mask, whole, covers_all)

    def paged(self, members: list[int]) -> PagedGroup:
        query_len = self.metadata.query_lens_host[members[0]]
        rows = self._rows(members, query_len)
        tables, lens = self.metadata.block_tables, self.metadata.seq_lens
        if members[-1] - members[0] == len(members) - 1:
            chosen: slice | torch.Tensor = slice(members[0], members[-1] + 1)
        else:
            chosen = torch.tensor(members, device=self.device)
        return PagedGroup(query_len, rows, tables[chosen], lens[chosen])

    def _rows(self, members: list[int], query_len: int) -> slice | torch.Tensor:
        ends = [self.row_ends[i] for i in members]
        if ends[-1] - ends[0] == (len(members) - 1) * query_len:
            return slice(ends[0] - query_len, ends[-1])
        last = torch.tensor(ends, device=self.device)
        return (last[:, None] - query_len + torch.arange(query_len, device=self.device)).reshape(-1)

    def _keys(self, members: list[int], longest: int) -> slice | torch.Tensor:
        blocks = -(-longest // self.block_size)
        tables = self.metadata.block_tables
        if len(members) == 1:
            table = tables[members[0], :blocks]
            together = self._begin_if_together(table)
            if together is not None:
                return slice(together * self.block_size, together * self.block_size + longest)
            return table
        if members[-1] - members[0] == len(members) - 1:
            return tables[members[0] : members[-1] + 1, :blocks].reshape(-1)
        return tables[torch.tensor(members, device=self.device), :blocks].reshape(-1)

    def _begin_if_together(self, table: torch.Tensor) -> int | None:
        """The first block, if the others follow it in order; not worth a synchronisation on a GPU."""
        if self.device.type != "cpu":
            return None
        numbers = table.tolist()
        first = int(numbers[0])
        return first if numbers == list(range(first, first + len(numbers))) else None

    def _mask(self, lens: list[int], query_len: int, key_len: int) -> torch.Tensor | None:
        if query_len == 1 and min(lens) == key_len:
            return None
        # Query row j of a sequence of n tokens sees the keys up to n - query_len + j.
        last_seen = torch.tensor(lens, device=self.device)[:, None] - query_len
        last_seen = last_seen + torch.arange(query_len, device=self.device)
        hidden = torch.arange(key_len, device=self.device) > last_seen[..., None]
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(hidden, -math.inf).unsqueeze(1)
