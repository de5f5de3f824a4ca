"""Qwen3 with experts (arXiv 2505.09388)."""

from __future__ import annotations

from atom.models.qwen3_moe.model import Qwen3MoeConfig, Qwen3MoeForCausalLM, Qwen3MoeModel

__all__ = ["Qwen3MoeConfig", "Qwen3MoeForCausalLM", "Qwen3MoeModel"]
