"""A plain module recorded as token graphs: one region looks at data on the host, everything else replays.

python examples/graphs_region_model.py
"""

from __future__ import annotations

import torch
from torch import nn

from atom.graphs import TokenGraph, eager_region


class Router(nn.Module):
    """Two experts; which of them a batch goes to is decided on the host, so no device graph can hold it."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, 2)
        self.experts = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2))
        self.out = nn.Linear(hidden, hidden)
        self.chosen: list[int] = []

    @eager_region
    def route(self, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        expert = int(scores.mean(0).argmax())
        self.chosen.append(expert)
        routed: torch.Tensor = self.experts[expert](x)
        return routed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(self.route(x, self.gate(x)).relu())
        return y


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Router(64).to(device)
    graph = TokenGraph(model)
    for rows in (64, 16, 4):  # largest first
        inputs = torch.randn(rows, 64, device=device)
        with torch.no_grad():
            model(inputs)  # the warm-up is the caller's
        graph.record(inputs)
    for rows in (3, 16, 40):
        x = torch.randn(rows, 64, device=device)
        got = graph.replay(x)
        with torch.no_grad():
            want = model(x)
        print(f"{rows} rows: worst difference to eager {(got - want).abs().max():.1e}")
    print(graph.describe())
    print(f"bucket 16 against eager on fresh inputs: equal = {graph.verify(16).equal}")


if __name__ == "__main__":
    main()
