"""Mixtral: a Mistral with experts (arXiv 2401.04088)."""

from __future__ import annotations

from atom.models.mixtral.model import MixtralConfig, MixtralForCausalLM, MixtralModel

__all__ = ["MixtralConfig", "MixtralForCausalLM", "MixtralModel"]
