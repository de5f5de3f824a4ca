"""From flags to a running engine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from atom.runner.cli.console import progress_bars, say
from atom.runner.loader import resolve_model_path

if TYPE_CHECKING:
    from atom.runner.cli.flags import EngineFlags
    from atom.runner.engine import LLMEngine

_LEVEL = "compilation_config.level"
_MODE = "compilation_config.cudagraph_mode"
_LEVEL_ON_GPU = 3
_SHORT_LADDER = [1, 2, 4, 8]
"""Batch sizes that a CPU records in seconds."""
_LADDERS = ("compilation_config.cudagraph_capture_sizes", "compilation_config.cuda_graph_sizes")


def start_engine(flags: EngineFlags) -> LLMEngine:
    """An engine for the model and settings that were given.

    Where no level was, the command line takes 3 on a GPU, with its default graph mode, and 0 on the CPU.
    Where graphs are recorded on the CPU and no ladder was given, it is short.

    Raises:
        ConfigError: settings that do not go together.
        ModelLoadError: there is no such model.
    """
    path = str(resolve_model_path(flags.model))
    config = flags.config(path)  # before torch is loaded: a mistake is answered at once
    from atom.runner.engine import LLMEngine
    from atom.runner.startup import resolve_device

    on_gpu = resolve_device(config.model_config.device).type == "cuda"
    if on_gpu and _LEVEL not in flags.values and not config.enforce_eager:
        flags = dataclasses.replace(flags, values={**flags.values, _LEVEL: _LEVEL_ON_GPU})
        config = flags.config(path)
    if not on_gpu and config.capture_sizes and not set(_LADDERS) & set(flags.values):
        ladder = [size for size in _SHORT_LADDER if size <= config.max_num_seqs]
        flags = dataclasses.replace(flags, values={**flags.values, _LADDERS[0]: ladder})
        config = flags.config(path)
    with progress_bars() as progress:
        return LLMEngine(config, progress=progress)


def start_recorded_engine(flags: EngineFlags) -> LLMEngine:
    """As `start_engine`, for verbs that are about graphs: there are some unless the flags say otherwise.

    Where neither level nor mode was given the mode is TR_HYBRID. Where no ladder was, the CPU's is short.
    """
    from atom.config import CUDAGraphMode
    from atom.runner.startup import resolve_device

    resolve_model_path(flags.model)
    values = dict(flags.values)
    if not {_LEVEL, _MODE} & set(values):
        values[_MODE] = CUDAGraphMode.TR_HYBRID
    if resolve_device(values.get("model_config.device", "auto")).type == "cpu":
        values.setdefault("max_num_seqs", _SHORT_LADDER[-1])
    return start_engine(dataclasses.replace(flags, values=values))


def described(engine: LLMEngine) -> str:
    """What an engine runs, in a few words."""
    from atom.runner.startup import resolve_dtype

    device, asked = engine.runner.device, engine.config.model_config
    if engine.checkpoint is None:
        return str(device)
    dtype = asked.quantization or resolve_dtype(asked.dtype, engine.checkpoint.dtype, device)
    where = f"{str(dtype).removeprefix('torch.')} on {device}"
    return f"{engine.checkpoint.path.name} ({engine.checkpoint.architecture}, {where})"


def has_chat_template(engine: LLMEngine) -> bool:
    """Whether chats can be rendered; where they cannot it is said, since prompts are then only continued."""
    if engine.tokenizer is None or engine.tokenizer.chat_template is not None:
        return True
    say("this checkpoint has no chat template: prompts are continued as they are")
    return False
