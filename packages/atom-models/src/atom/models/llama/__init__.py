"""The Llama architecture: Llama 1 to 3, SmolLM2 and whatever else calls itself `LlamaForCausalLM`."""

from __future__ import annotations

from atom.models.llama.config import LlamaConfig
from atom.models.llama.model import LlamaForCausalLM, LlamaModel
from atom.models.llama.weights import STACKED, weight_destinations

__all__ = ["STACKED", "LlamaConfig", "LlamaForCausalLM", "LlamaModel", "weight_destinations"]
