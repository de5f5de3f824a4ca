"""From a configuration to everything an engine holds: model, caches, graphs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom.runner.admission import Limits
from atom.runner.block_manager import BlockManager
from atom.runner.errors import ModelLoadError
from atom.runner.kv_cache import plan_kv_cache
from atom.runner.loader import open_checkpoint
from atom.runner.memory import measured_budget
from atom.runner.model_runner import ModelRunner
from atom.runner.scheduler import Scheduler
from atom.runner.tokenizer import Tokenizer
from atom.runner.tokenizer_file import tokenizer_from_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom.config import Config
    from atom.runner.protocols import CausalLM, Checkpoint, Progress


@dataclass(frozen=True)
class Started:
    """A model that is ready to answer."""

    config: Config
    checkpoint: Checkpoint | None
    tokenizer: Tokenizer | None
    limits: Limits
    runner: ModelRunner
    scheduler: Scheduler
    load_seconds: float
    capture_seconds: float


def resolve_device(name: str) -> torch.device:
    """The device that a configuration's word means; `auto` is the first GPU, else the CPU.

    Raises:
        ModelLoadError: a GPU was asked for and there is none of that number.
    """
    gpus = torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if gpus else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise ModelLoadError(
            f"device={name}: {gpus} GPUs are visible to torch here; use --device cpu or auto"
        )
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def resolve_dtype(name: str, checkpoint_dtype: str, device: torch.device) -> torch.dtype:
    """The number format a model runs in; `auto` is the checkpoint's own on a GPU and float32 on a CPU."""
    if name == "auto":
        name = checkpoint_dtype if device.type == "cuda" else "float32"
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def start(config: Config, *, progress: Progress | None = None) -> Started:
    """Open, load and prepare `config.model`.

    Raises:
        ModelLoadError: the path leads to no model, `max_model_len` is above what it was made for, or a
            setting asks for what this version does not have.
        KVCacheError: memory leaves no room for a cache.
    """
    began = time.perf_counter()
    _refuse_what_is_missing(config)
    opened = open_checkpoint(config.model)
    checkpoint = opened.checkpoint
    asked = config.model_config.max_model_len
    if asked is not None and asked > checkpoint.max_model_len:
        raise ModelLoadError(
            f"max_model_len={asked}: {checkpoint.path} was made for at most {checkpoint.max_model_len} tokens"
        )
    device = resolve_device(config.model_config.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dtype = resolve_dtype(config.model_config.dtype, checkpoint.dtype, device)
    tokenizer = _tokenizer(config, checkpoint)  # before the weights: a bad one is told at once
    model = opened.build(config, device=device, dtype=dtype, progress=progress)
    return _prepare(
        config,
        model,
        device=device,
        vocab_size=checkpoint.vocab_size,
        max_model_len=asked or checkpoint.max_model_len,
        eos_token_ids=checkpoint.generation.eos_token_ids,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        began=began,
        progress=progress,
    )


def _refuse_what_is_missing(config: Config) -> None:
    """A setting that this version takes no notice of would run as something else than was asked for."""
    parallel = config.parallel_config
    asked = {
        "tensor_parallel_size": parallel.tensor_parallel_size > 1,
        "data_parallel_size": parallel.data_parallel_size > 1,
        "speculative_config": config.speculative_config is not None,
        "enable_tbo": config.enable_tbo != "none",
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise ModelLoadError(f"{name}: this version runs one process, without drafts and microbatches")


def start_from_model(
    config: Config,
    model: CausalLM,
    *,
    vocab_size: int,
    max_model_len: int,
    eos_token_ids: Sequence[int],
    tokenizer: Tokenizer | None,
    progress: Progress | None,
) -> Started:
    """As `start`, around a model that is already on the device its config names."""
    _refuse_what_is_missing(config)
    return _prepare(
        config,
        model,
        device=resolve_device(config.model_config.device),
        vocab_size=vocab_size,
        max_model_len=min(config.model_config.max_model_len or max_model_len, max_model_len),
        eos_token_ids=eos_token_ids,
        checkpoint=None,
        tokenizer=tokenizer,
        began=time.perf_counter(),
        progress=progress,
    )


def _prepare(
    config: Config,
    model: CausalLM,
    *,
    device: torch.device,
    vocab_size: int,
    max_model_len: int,
    eos_token_ids: Sequence[int],
    checkpoint: Checkpoint | None,
    tokenizer: Tokenizer | None,
    began: float,
    progress: Progress | None,
) -> Started:
    runner = ModelRunner(config, model, device=device, vocab_size=vocab_size, max_model_len=max_model_len)
    specs = model.kv_cache_spec()
    layout = plan_kv_cache(
        specs,
        config.kv_cache_config,
        max_num_seqs=config.max_num_seqs,
        max_model_len=max_model_len,
        budget_bytes=None if _is_sized(config) else measured_budget(runner),
    )
    runner.allocate_kv_cache(layout)
    loaded = time.perf_counter()
    capture_seconds, _ = runner.capture_cudagraph(progress)
    blocks = BlockManager(
        layout.num_blocks,
        layout.block_size,
        # A sequence's slot caches are not found by their tokens: skipping tokens would leave them empty.
        prefix_caching=config.kv_cache_config.enable_prefix_caching and layout.num_slots == 0,
    )
    return Started(
        config=config,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        limits=Limits(
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            kv_capacity=layout.capacity,
            eos_token_ids=frozenset(eos_token_ids),
        ),
        runner=runner,
        scheduler=Scheduler(
            blocks,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            chunked_prefill=config.enable_chunked_prefill,
        ),
        load_seconds=loaded - began,
        capture_seconds=capture_seconds,
    )


def _is_sized(config: Config) -> bool:
    cache = config.kv_cache_config
    return cache.num_kv_blocks is not None or cache.kv_cache_memory_bytes is not None


def _tokenizer(config: Config, checkpoint: Checkpoint) -> Tokenizer | None:
    path = config.model_config.tokenizer
    data = checkpoint.tokenizer if path is None else tokenizer_from_file(path, checkpoint.tokenizer)
    return None if data is None else Tokenizer(data)
