"""The ATOM engine: scheduler, paged KV cache, model runner, command line and server.

Names load when they are used: `atom-runner --help` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atom.runner.engine import LLMEngine
    from atom.runner.errors import (
        CaptureError,
        ChatTemplateError,
        DuplicateRequestError,
        KVCacheError,
        ModelLoadError,
        PromptError,
        RequestError,
        RunnerError,
        SamplingParamsError,
        StepError,
        TokenizerError,
    )
    from atom.runner.output import RequestOutput
    from atom.runner.protocols import AttnMetadataBuilder, CausalLM, Checkpoint, ModelProvider, Progress
    from atom.runner.sampling_params import SamplingParams
    from atom.runner.stats import EngineStats

__all__ = [
    "AttnMetadataBuilder",
    "CaptureError",
    "CausalLM",
    "ChatTemplateError",
    "Checkpoint",
    "DuplicateRequestError",
    "EngineStats",
    "KVCacheError",
    "LLMEngine",
    "ModelLoadError",
    "ModelProvider",
    "Progress",
    "PromptError",
    "RequestError",
    "RequestOutput",
    "RunnerError",
    "SamplingParams",
    "SamplingParamsError",
    "StepError",
    "TokenizerError",
]

_HOMES = {
    "LLMEngine": "engine",
    "RequestOutput": "output",
    "SamplingParams": "sampling_params",
    "EngineStats": "stats",
    "AttnMetadataBuilder": "protocols",
    "CausalLM": "protocols",
    "Checkpoint": "protocols",
    "ModelProvider": "protocols",
    "Progress": "protocols",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
