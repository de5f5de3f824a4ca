"""The Lightning Indexer: cheap queries against small keys say which entries a token attends to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

import atom.models.deepseek_v4.indexer_score  # noqa: F401  registers the ops
from atom.models.deepseek_v4.compressor import Compressor
from atom.models.deepseek_v4.rope import InterleavedRotary, rotate_trailing
from atom.models.layers.linear import Linear

if TYPE_CHECKING:
    from atom.models.deepseek_v4.config import DeepseekV4Config
    from atom.models.layers.rotary import CosSin


class Indexer(nn.Module):
    """Picks `index_topk` compressed entries for each row."""

    def __init__(
        self,
        config: DeepseekV4Config,
        rotary: InterleavedRotary,
        *,
        layer_id: int,
        breaks: bool,
        max_entries: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`breaks`: scores are planned on the host; `max_entries`: those of the longest sequence."""
        super().__init__()
        self.heads, self.width = config.index_n_heads, config.index_head_dim
        self.ratio, self.layer_id, self.breaks = config.sparse_ratio, layer_id, breaks
        self.max_entries, self.top_k = max_entries, min(config.index_topk, max_entries)
        self.scale = (self.heads * self.width) ** -0.5
        self.q_b_proj = Linear(config.q_lora_rank, self.heads * self.width, dtype=dtype, device=device)
        self.weights_proj = Linear(config.hidden_size, self.heads, dtype=dtype, device=device)
        self.compressor = Compressor(
            config.hidden_size,
            self.width,
            self.ratio,
            overlap=True,
            eps=config.rms_norm_eps,
            rotary=rotary,
            dtype=dtype,
            device=device,
        )

    def forward(
        self,
        x: torch.Tensor,
        q_latent: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        cos_sin: CosSin,
        fence: torch.Tensor,
    ) -> torch.Tensor:
        """Entry numbers int64 `[rows, top_k]`, -1 where a row sees fewer.

        `x` `[rows, hidden]` is the attention's normed input, `q_latent` `[rows, q_lora_rank]` its queries'.
        """
        query = rotate_trailing(self.q_b_proj(q_latent).view(-1, self.heads, self.width), cos_sin)
        weights = self.weights_proj(x).float() * self.scale
        score = torch.ops.aiter.v4_fp4_band_logits if self.breaks else torch.ops.aiter.v4_index_logits
        logits = score(query, weights, rows, fence, self.layer_id, self.max_entries)
        picks: torch.Tensor = torch.ops.aiter.v4_index_picks(logits, positions, self.ratio, self.top_k)
        return picks
