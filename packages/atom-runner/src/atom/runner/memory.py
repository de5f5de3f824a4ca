"""How much memory a GPU has left for the KV cache, found by running what else will need memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom.runner.kv_cache import device_budget, plan_kv_cache

if TYPE_CHECKING:
    from atom.runner.model_runner import ModelRunner


def measured_budget(runner: ModelRunner) -> int | None:
    """Bytes left for the cache; None on a CPU, whose memory is not ours alone to fill.

    Runs the largest steps eagerly and records the largest buckets, over a cache of one block, and sets aside
    what that took.

    Raises:
        KVCacheError: nothing is left.
    """
    if runner.device.type != "cuda":
        return None
    config = runner.config
    probe = config.kv_cache_config.replace(num_kv_blocks=1)
    layout = plan_kv_cache(
        runner.model.kv_cache_spec(),
        probe,
        max_num_seqs=config.max_num_seqs,
        max_model_len=runner.batch.max_seq_len,
        budget_bytes=None,
    )
    runner.allocate_kv_cache(layout)
    workspace = _peak_of_eager_steps(runner)
    left = device_budget(
        runner.device, config.kv_cache_config.gpu_memory_utilization, reserve_bytes=workspace
    )
    # After the budget was taken: the pool keeps what the trial gave it, for the recordings to come.
    left -= runner.measure_graph_bytes()
    runner.static_forward_context.kv_cache_data = {}
    torch.cuda.empty_cache()
    return left


def _peak_of_eager_steps(runner: ModelRunner) -> int:
    """Bytes that the largest prefill and the largest decode step need beyond what lies there between
    steps."""
    config = runner.config
    torch.cuda.synchronize(runner.device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(runner.device)
    before = torch.cuda.memory_allocated(runner.device)
    rows, longest = config.max_num_batched_tokens, runner.batch.max_seq_len
    prompts = [min(longest, rows - start) for start in range(0, rows, longest)][: config.max_num_seqs]
    runner.warm_up(prompts, is_prefill=True)
    runner.warm_up([config.max_query_len] * config.max_decode_seqs, is_prefill=False)
    torch.cuda.synchronize(runner.device)
    return torch.cuda.max_memory_allocated(runner.device) - before
