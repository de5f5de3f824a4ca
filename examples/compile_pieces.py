"""A model cut at its attention op: what is compiled, what is shared, what a second start finds.

Run: uv run python examples/compile_pieces.py [--inductor]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from atom.compile import (
    check_cache,
    compilation_counter,
    direct_register_custom_op,
    list_cache,
    support_torch_compile,
)
from atom.config import CompilationConfig, Config


def attend(x: torch.Tensor, out: torch.Tensor) -> None:
    """Stands for attention: no compiler looks inside, and it writes the buffer it is given."""
    out.copy_(x.cumsum(0))


direct_register_custom_op("example_attend", attend, mutates_args=["out"])


@support_torch_compile
class Decoder(nn.Module):
    """Equal layers around the op."""

    def __init__(self, *, atom_config: Config, prefix: str = "") -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(12))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            out = torch.empty_like(x)
            torch.ops.aiter.example_attend(x, out)
            x = torch.relu(layer(out)) + x
        return x


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        compilation = CompilationConfig(
            level=3,
            splitting_ops=["aiter.example_attend"],
            cache_dir=cache,
            use_inductor="--inductor" in sys.argv,
        )
        model = Decoder(atom_config=Config("example", compilation_config=compilation))
        with torch.no_grad():
            for rows in (8, 1, 3):
                ids = torch.arange(rows)
                torch.testing.assert_close(model(ids), model.forward(ids))
        counter = compilation_counter
        print(f"{counter.num_pieces} pieces, {counter.num_backend_compilations} compiled")
        kept, damaged = list_cache(Path(cache)).artifacts, check_cache(Path(cache))
        print(f"{len(kept)} artifacts kept, {len(damaged)} damaged")


if __name__ == "__main__":
    main()
