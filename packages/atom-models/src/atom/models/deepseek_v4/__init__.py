"""The DeepSeek-V4 architecture: hyper-connections, compressed sparse attention, mixture of experts."""

from __future__ import annotations

from atom.models.deepseek_v4.config import DeepseekV4Config
from atom.models.deepseek_v4.model import DeepseekV4ForCausalLM, DeepseekV4Model
from atom.models.deepseek_v4.weights import weight_destinations

__all__ = ["DeepseekV4Config", "DeepseekV4ForCausalLM", "DeepseekV4Model", "weight_destinations"]
