"""Bucket-fixed regions: a decode whose lengths live on the device replays as one launch.

A toy decoder with a growing cache. Every launch of its region follows from the bucket, and lengths are read
from a tensor, so a request graph is recorded beside the token graph of the same rows; `ForwardMode.decide`
settles which of them a step replays.

    python examples/graphs_bucket_fixed_decode.py
"""

from __future__ import annotations

import torch
from torch import nn

from atom.config import CUDAGraphMode
from atom.graphs import (
    AttentionMetaData,
    Context,
    ForwardMode,
    ReqGraph,
    eager_region,
    get_forward_context,
    token_graph,
    token_graph_of,
)
from atom.graphs.forward_context import TRGraph, forward_context

HIDDEN, MAX_LEN, MAX_SEQS = 16, 32, 8
BUCKETS = (8, 2)


@token_graph
class Decoder(nn.Module):
    """Each row adds itself to its sequence's cache and reads the mean of what is there."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.inner = nn.Linear(HIDDEN, HIDDEN, device=device)
        self.cache = torch.zeros(MAX_SEQS, MAX_LEN, HIDDEN, device=device)
        self.eval()

    @eager_region(bucket_fixed=True)
    def attend(self, x: torch.Tensor) -> torch.Tensor:
        metadata = get_forward_context().attn_metadata
        assert isinstance(metadata, AttentionMetaData)
        lengths = metadata.seq_lens[: x.shape[0]].long()
        sequences = torch.arange(x.shape[0], device=x.device)
        # A padding row has length 0; it writes to the last position of its own row, which no live row reads.
        self.cache.index_put_((sequences, (lengths - 1) % MAX_LEN), x)
        live = torch.arange(MAX_LEN, device=x.device) < lengths[:, None]
        summed = torch.where(live[..., None], self.cache[: x.shape[0]], 0.0).sum(1)
        return summed / lengths.clamp(min=1)[:, None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.attend(self.inner(x)))


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, requests = Decoder(device), ReqGraph()
    x = torch.zeros(MAX_SEQS, HIDDEN, device=device)
    lengths = torch.zeros(MAX_SEQS, dtype=torch.int32, device=device)

    def step(rows: int, mode: ForwardMode | None = None, tr_graph: TRGraph | None = None) -> torch.Tensor:
        metadata = AttentionMetaData(
            cu_seqlens_q=torch.arange(rows + 1, dtype=torch.int32, device=device),
            seq_lens=lengths,
            block_tables=torch.zeros(rows, 1, dtype=torch.int32, device=device),
            slot_mapping=torch.zeros(rows, dtype=torch.int64, device=device),
            max_seqlen_q=1,
            max_seqlen_k=MAX_LEN,
        )
        context = Context(positions=torch.zeros(rows, device=device), running_bs=rows, running_tokens=rows)
        with forward_context(metadata, None, context, forward_mode=mode, tr_graph=tr_graph):
            if tr_graph == "record":
                model(x[:rows])
                requests.record(lambda: model.forward(x[:rows]))
            if mode is not None and mode.kind == "request":
                replayed: torch.Tensor = requests.replay((rows, 0))
                return replayed
            out: torch.Tensor = model(x[:rows])
            return out

    with torch.inference_mode():
        for rows in BUCKETS:
            step(rows, tr_graph="record")
        model.cache.zero_()
        graph = token_graph_of(model)
        assert graph is not None
        print(f"token buckets {graph.captured_sizes()}, every region bucket-fixed: {graph.bucket_fixed}")
        for live in (2, 1, 5, 8):
            mode = ForwardMode.decide(
                mode=CUDAGraphMode.TR_HYBRID,
                is_prefill=False,
                batch_size=live,
                num_tokens=live,
                max_seqlen_q=1,
                enforce_eager=False,
                request_sizes=requests.captured_sizes(),
                token_sizes=graph.captured_sizes(),
            )
            lengths[:live] += 1
            x[:live] = torch.randn(live, HIDDEN, device=device)
            out = step(mode.running_bs, mode)
            print(f"{live} sequences: {mode.reason}, output {tuple(out[:live].shape)}")
        print(requests.describe())


if __name__ == "__main__":
    main()
