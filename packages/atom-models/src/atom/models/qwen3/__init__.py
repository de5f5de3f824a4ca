"""Qwen3, dense: a Llama whose query and key heads are normalised (arXiv 2505.09388)."""

from __future__ import annotations

from atom.models.qwen3.model import Qwen3Config, Qwen3ForCausalLM, Qwen3Model

__all__ = ["Qwen3Config", "Qwen3ForCausalLM", "Qwen3Model"]
