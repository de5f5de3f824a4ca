"""`aiter.v4_attn_compress_launch`: a layer's compressors, ahead of its projections and beside them.

On a GPU each compressor has a stream of its own, forked here and joined by `aiter.v4_attn_compress_join`.
Both ops cut a compiled graph and are recorded inline: what they launch follows the number of rows.
"""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from atom.compile import direct_register_custom_op
from atom.compile.split import mark_spliting_op
from atom.models.deepseek_v4.compressor import Closing
from atom.models.deepseek_v4.step import Step, step_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


@functools.cache
def side_streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Streams of a GPU for the entries and for the index keys; the same for every layer."""
    first, second = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]
    return first, second


def v4_attn_compress_launch(
    x: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, fence: torch.Tensor, layer_id: int
) -> None:
    """Run the compressors of a layer on `x` `[rows, hidden]`; `fence` orders the join after it.

    Raises:
        AttentionSetupError: the forward context knows no such layer, or no cache for it.
    """
    fence.zero_()
    step = step_of(layer_id)
    if step is None:
        return
    compressors = step.layer.compressors
    closing = _closing(step, positions)
    for number, (name, compressor) in enumerate(compressors.items()):
        with _forked(x, number):
            compressor.run(
                x,
                positions,
                rows,
                closing=closing,
                pool=step.caches[name],
                state=step.caches[f"{name}_state"],
                tables=step.metadata.block_tables,
                encode=step.layer.encoders.get(name),
            )


def v4_attn_compress_join(x: torch.Tensor, fence: torch.Tensor, layer_id: int) -> None:
    """Let the current stream wait for what `v4_attn_compress_launch` left running; `x`, its input, must live
    until then."""
    fence.zero_()
    if x.is_cuda:
        current = torch.cuda.current_stream(x.device)
        for stream in side_streams(x.device):
            current.wait_stream(stream)


def _closing(step: Step, positions: torch.Tensor) -> Closing:
    """Rows that may complete a group: in prefill those that do, elsewhere all, so that shapes follow rows."""
    ratio = step.layer.ratio
    if step.is_prefill:
        rows = step.metadata.closing_rows(ratio)
        return Closing(rows, torch.ones_like(rows, dtype=torch.bool))
    rows = torch.arange(positions.shape[0], device=positions.device)
    return Closing(rows, (positions + 1) % ratio == 0)


def _forked(x: torch.Tensor, number: int) -> AbstractContextManager[object]:
    if not x.is_cuda:
        return nullcontext()
    stream = side_streams(x.device)[number]
    stream.wait_stream(torch.cuda.current_stream(x.device))
    return torch.cuda.stream(stream)


direct_register_custom_op("v4_attn_compress_launch", v4_attn_compress_launch, mutates_args=["fence"])
direct_register_custom_op("v4_attn_compress_join", v4_attn_compress_join, mutates_args=["fence"])
mark_spliting_op("aiter.v4_attn_compress_launch")
mark_spliting_op("aiter.v4_attn_compress_join")
