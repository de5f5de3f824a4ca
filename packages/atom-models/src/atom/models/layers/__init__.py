"""Layers that models are built of: flat rows `[num_tokens, ...]`, a file each."""

from __future__ import annotations

from atom.models.layers.attention import Attention
from atom.models.layers.attention_metadata import AttentionMetadataBuilder, TorchAttentionMetaData
from atom.models.layers.embedding import LMHead, TokenEmbedding
from atom.models.layers.errors import AttentionSetupError, LayerArgumentError, LayerError
from atom.models.layers.linear import FusedLinear, GateUpLinear, Linear, QKVLinear
from atom.models.layers.mlp import GatedMLP, silu_mul
from atom.models.layers.norm import RMSNorm
from atom.models.layers.rope_scaling import rotary_frequencies
from atom.models.layers.rotary import RotaryEmbedding

__all__ = [
    "Attention",
    "AttentionMetadataBuilder",
    "AttentionSetupError",
    "FusedLinear",
    "GateUpLinear",
    "GatedMLP",
    "LMHead",
    "LayerArgumentError",
    "LayerError",
    "Linear",
    "QKVLinear",
    "RMSNorm",
    "RotaryEmbedding",
    "TokenEmbedding",
    "TorchAttentionMetaData",
    "rotary_frequencies",
    "silu_mul",
]
