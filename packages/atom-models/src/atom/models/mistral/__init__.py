"""Mistral, dense: a Llama that may have been trained with a sliding window (arXiv 2310.06825)."""

from __future__ import annotations

from atom.models.mistral.model import MistralConfig, MistralForCausalLM, MistralModel

__all__ = ["MistralConfig", "MistralForCausalLM", "MistralModel"]
