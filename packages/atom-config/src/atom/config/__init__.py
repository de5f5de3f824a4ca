"""Configuration of ATOM. Standard library only: importing it imports no torch."""

from atom.config.cache_spec import CacheSpec
from atom.config.capture_sizes import default_ladder, ladder_within, prefill_ladder
from atom.config.compilation import DEFAULT_SPLITTING_OPS, CompilationConfig
from atom.config.cudagraph_mode import CUDAGraphMode
from atom.config.engine import Config
from atom.config.environment import Environment, read_environment
from atom.config.errors import ConfigError
from atom.config.flags import Setting, from_settings, settings_of
from atom.config.hashing import stable_hash
from atom.config.kv_cache import KVCacheConfig
from atom.config.level import CompilationLevel
from atom.config.model import ModelConfig
from atom.config.parallel import ParallelConfig
from atom.config.speculative import SpeculativeConfig

__all__ = [
    "DEFAULT_SPLITTING_OPS",
    "CUDAGraphMode",
    "CacheSpec",
    "CompilationConfig",
    "CompilationLevel",
    "Config",
    "ConfigError",
    "Environment",
    "KVCacheConfig",
    "ModelConfig",
    "ParallelConfig",
    "Setting",
    "SpeculativeConfig",
    "default_ladder",
    "from_settings",
    "ladder_within",
    "prefill_ladder",
    "read_environment",
    "settings_of",
    "stable_hash",
]
