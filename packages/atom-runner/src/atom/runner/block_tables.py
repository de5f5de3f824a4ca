"""The block table of every running request, on the host and on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from atom.runner.scheduler import StepPlan


class BlockTables:
    """Rows of block numbers, one a running request, and the rows of the step in the order of its batch.

    A row is written when its request gets blocks and nothing is sent otherwise; a step's table is gathered on
    the device. One more row than there are requests stays all zero, for padding sequences.
    """

    def __init__(self, num_rows: int, width: int, max_step_rows: int, device: torch.device) -> None:
        """`num_rows` requests of up to `width` blocks; a step holds up to `max_step_rows` sequences."""
        pinned = device.type == "cuda"
        self.padding_row = num_rows
        host = torch.zeros((num_rows + 1, width), dtype=torch.int32, pin_memory=pinned)
        self._host_tensor = host
        self.host = host.numpy()
        """int32 `[rows + 1, width]`; entries past a request's own may be stale here, never on the device."""
        self._written = np.zeros(num_rows + 1, dtype=np.int64)
        self._device = host if device.type == "cpu" else torch.zeros_like(host, device=device)
        self.step = torch.zeros((max_step_rows, width), dtype=torch.int32, device=device)
        """int32 `[max step rows, width]`: the tables of the step's sequences."""

    @property
    def width(self) -> int:
        return int(self.host.shape[1])

    def update(self, plan: StepPlan) -> None:
        """Write the blocks that requests of `plan` got or lost since their last step."""
        changed = []
        for request in plan.requests:
            row, blocks = request.row, request.blocks
            known = self._written[row]
            if known == len(blocks) and request.table_row == row:
                continue
            if request.table_row != row:
                # A new owner: nothing of the last one may remain.
                known = 0
                self.host[row] = 0
                request.table_row = row
            self.host[row, known : len(blocks)] = blocks[known:]
            self._written[row] = len(blocks)
            changed.append(row)
        if self._device is not self._host_tensor:
            for row in changed:
                self._device[row].copy_(self._host_tensor[row], non_blocking=True)

    def gather(self, rows: torch.Tensor) -> None:
        """Put the tables of `rows`, int64 `[n]` on the device, into the first `n` rows of `step`."""
        torch.index_select(self._device, 0, rows, out=self.step[: rows.shape[0]])
