"""The tensors of one step: built once on the host, sent once, padded as the step's graph wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atom.runner.block_tables import BlockTables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom.runner.request import Request
    from atom.runner.scheduler import StepPlan

_DTYPES: dict[torch.dtype, Any] = {torch.int64: np.int64, torch.int32: np.int32}


class InputBatch:
    """Persistent input buffers, and what lies in them this step (see `protocols.StepBatch`).

    Addresses never change, so that a recorded graph can read them. On a GPU the host side is pinned and sent
    asynchronously; on a CPU both sides are the same memory.
    """

    def __init__(
        self,
        *,
        max_rows: int,
        max_seqs: int,
        num_request_rows: int,
        max_blocks: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        """`max_rows` and `max_seqs` bound a step, padding included; `num_request_rows` the running
        requests."""
        self.device = device
        self.block_size = block_size
        self.max_rows = max_rows
        self.max_seqs = max_seqs
        self.tables = BlockTables(num_request_rows, max_blocks, max_seqs, device)
        self._host: dict[str, torch.Tensor] = {}
        self._device: dict[str, torch.Tensor] = {}
        self._numpy: dict[str, np.ndarray[Any, Any]] = {}
        self.input_ids = self._buffer("input_ids", max_rows, torch.int64)
        self.positions = self._buffer("positions", max_rows, torch.int64)
        self.slot_mapping = self._buffer("slot_mapping", max_rows, torch.int64)
        self.cu_seqlens_q = self._buffer("cu_seqlens_q", max_seqs + 1, torch.int32)
        self.seq_lens = self._buffer("seq_lens", max_seqs, torch.int32)
        self.state_slots = self._buffer("state_slots", max_seqs, torch.int32)
        self._rows = self._buffer("rows", max_seqs, torch.int64)
        self._logits_rows = self._buffer("logits_rows", max_seqs, torch.int64)
        self._sent = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.block_tables = self.tables.step
        self.num_seqs = self.num_tokens = self.num_logits = 0
        self.max_seqlen_q = self.max_seqlen_k = 0
        self.query_lens_host: list[int] = []
        self.seq_lens_host: list[int] = []
        self._wanted: list[int] = []
        self._decoding: list[Request] | None = None
        """Sequences of the last step, where each of them decoded one token."""

    def _buffer(self, name: str, length: int, dtype: torch.dtype) -> torch.Tensor:
        host = torch.zeros(length, dtype=dtype, pin_memory=self.device.type == "cuda")
        self._host[name] = host
        self._numpy[name] = host.numpy()
        on_device = host if self.device.type == "cpu" else torch.zeros_like(host, device=self.device)
        self._device[name] = on_device
        return on_device

    def fill(self, plan: StepPlan) -> list[int]:
        """Write the live part of a step; return the batch positions whose logits are wanted.

        Positions, slots and lengths are computed for all rows at once; Python visits each request only to
        read it.
        """
        if self._sent is not None:
            self._sent.synchronize()  # the last step's copy may still read the host buffers
        self.tables.update(plan)
        if not self._is_next_token(plan):
            self._build(plan)
        else:
            self._advance(plan.requests)
        return self._wanted

    def _is_next_token(self, plan: StepPlan) -> bool:
        """Whether the sequences of the last step each take the token after it, and nothing else changed."""
        if plan.requests != self._decoding or plan.num_tokens != len(plan.requests):
            return False
        first, last = plan.requests[0], plan.requests[-1]
        places = self._numpy["seq_lens"]
        return bool(first.num_computed == places[0] and last.num_computed == places[len(plan.requests) - 1])

    def _advance(self, requests: list[Request]) -> None:
        n, host = len(requests), self._numpy
        positions, seq_lens = host["positions"][:n], host["seq_lens"][:n]
        positions += 1
        seq_lens += 1
        host["input_ids"][:n] = [request.token_ids[-1] for request in requests]
        self._write_slots(positions, host["rows"][:n])
        self.seq_lens_host = seq_lens.tolist()
        self.max_seqlen_k = max(self.seq_lens_host)

    def _build(self, plan: StepPlan) -> None:
        requests, query_lens = plan.requests, plan.query_lens
        n, total, host = len(requests), plan.num_tokens, self._numpy
        rows = host["rows"][:n]
        rows[:] = [request.row for request in requests]
        start = np.array([request.num_computed for request in requests], dtype=np.int64)
        lens = np.array(query_lens, dtype=np.int64)
        ends = start + lens
        cu = host["cu_seqlens_q"]
        cu[0] = 0
        np.cumsum(lens, out=cu[1 : n + 1])
        host["seq_lens"][:n] = ends
        host["state_slots"][:n] = rows + 1  # slot 0 belongs to padding
        positions, ids, at = host["positions"][:total], host["input_ids"], 0
        positions[:] = np.arange(total) + np.repeat(start - cu[:n], lens)
        for request, query_len in zip(requests, query_lens, strict=True):
            first = request.num_computed
            ids[at : at + query_len] = request.token_ids[first : first + query_len]
            at += query_len
        self._write_slots(positions, np.repeat(rows, lens))
        self.num_seqs, self.num_tokens = n, total
        self.query_lens_host, self.seq_lens_host = query_lens, ends.tolist()
        self.max_seqlen_q, self.max_seqlen_k = int(lens.max()), int(ends.max())
        self._wanted = [i for i, r in enumerate(requests) if self.seq_lens_host[i] == len(r.token_ids)]
        self.num_logits = len(self._wanted)
        host["logits_rows"][: self.num_logits] = cu[1:][self._wanted] - 1
        self._decoding = requests if total == n == self.num_logits else None

    def _write_slots(self, positions: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> None:
        block = positions // self.block_size
        slots = (self.tables.host[rows, block] - block) * self.block_size + positions
        self._numpy["slot_mapping"][: len(positions)] = slots

    @property
    def max_seq_len(self) -> int:
        """Tokens that the table of one sequence can hold."""
        return self.tables.width * self.block_size

    def fill_dummy(self, query_lens: Sequence[int]) -> None:
        """A step of sequences that exist only in block 0: for warming up and recording."""
        if self._sent is not None:
            self._sent.synchronize()
        n, total, host = len(query_lens), sum(query_lens), self._numpy
        lens = np.array(query_lens, dtype=np.int64)
        cu = host["cu_seqlens_q"]
        cu[0] = 0
        np.cumsum(lens, out=cu[1 : n + 1])
        host["rows"][:n] = self.tables.padding_row
        host["seq_lens"][:n] = lens
        host["state_slots"][:n] = 0
        host["input_ids"][:total] = 0
        host["positions"][:total] = np.arange(total) - np.repeat(cu[:n], lens)
        host["slot_mapping"][:total] = host["positions"][:total] % self.block_size
        host["logits_rows"][:n] = cu[1 : n + 1] - 1
        self.num_seqs, self.num_tokens, self.num_logits = n, total, n
        self.query_lens_host = self.seq_lens_host = list(query_lens)
        self._wanted, self._decoding = list(range(n)), None
        self.max_seqlen_q = self.max_seqlen_k = int(lens.max())

    def send(self, running_bs: int, running_tokens: int) -> None:
        """Pad to the step's bucket and send. Padding sequences are empty, padding rows write to block 0."""
        n, total, host = self.num_seqs, self.num_tokens, self._numpy
        if running_bs > n:
            per_seq = self.max_seqlen_q if total == n * self.max_seqlen_q else 0
            host["cu_seqlens_q"][n + 1 : running_bs + 1] = total + per_seq * np.arange(1, running_bs - n + 1)
            host["seq_lens"][n:running_bs] = 0
            host["state_slots"][n:running_bs] = 0
            host["rows"][n:running_bs] = self.tables.padding_row
        if running_tokens > total:
            host["input_ids"][total:running_tokens] = 0
            host["positions"][total:running_tokens] = 0
            host["slot_mapping"][total:running_tokens] = np.arange(running_tokens - total) % self.block_size
        if self._sent is not None:
            self._copy(running_bs, running_tokens)
            self._sent.record()
        self.tables.gather(self._rows[:running_bs])

    def _copy(self, running_bs: int, running_tokens: int) -> None:
        lengths = (
            ("input_ids", running_tokens),
            ("positions", running_tokens),
            ("slot_mapping", running_tokens),
            ("cu_seqlens_q", running_bs + 1),
            ("seq_lens", running_bs),
            ("state_slots", running_bs),
            ("rows", running_bs),
            ("logits_rows", self.num_logits),
        )
        torch._foreach_copy_(
            [self._device[name][:length] for name, length in lengths],
            [self._host[name][:length] for name, length in lengths],
            non_blocking=True,
        )

    @property
    def logits_rows(self) -> torch.Tensor:
        """int64 `[sampled sequences]`: rows of the hidden states whose logits are wanted."""
        return self._logits_rows[: self.num_logits]
