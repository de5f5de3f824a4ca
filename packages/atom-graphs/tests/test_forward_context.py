from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

from atom.graphs import (
    AttentionMetaData,
    Context,
    DPMetadata,
    ForwardContext,
    ForwardMode,
    KVCacheTensor,
    SpecDecodeMetadata,
    StaticForwardContext,
    get_forward_context,
    reset_forward_context,
    set_forward_context,
)
from atom.graphs.forward_context import forward_context

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    reset_forward_context()
    yield
    reset_forward_context()


def _context() -> Context:
    return Context(positions=torch.arange(3), batch_size=3, running_bs=4, running_tokens=4)


def _metadata() -> AttentionMetaData:
    return AttentionMetaData(
        cu_seqlens_q=torch.tensor([0, 1, 2, 3], dtype=torch.int32),
        seq_lens=torch.tensor([5, 6, 7], dtype=torch.int32),
        block_tables=torch.ones(3, 2, dtype=torch.int32),
        slot_mapping=torch.tensor([20, 21, 22]),
        max_seqlen_q=1,
        max_seqlen_k=7,
    )


def test_outside_a_forward_the_context_is_empty() -> None:
    assert get_forward_context() == ForwardContext()


def test_set_makes_all_of_it_readable_and_reset_clears_it() -> None:
    cache = KVCacheTensor(0, {"k": torch.zeros(1), "v": torch.ones(1)})
    static = StaticForwardContext({3: "layer"}, {"layers.0": cache})
    metadata, context = _metadata(), _context()
    set_forward_context(metadata, None, context, static=static)
    now = get_forward_context()
    assert now.attn_metadata is metadata
    assert now.context is context
    assert now.no_compile_layers is static.no_compile_layers
    assert now.kv_cache_data["layers.0"].k_cache is cache.tensors["k"]
    assert now.kv_cache_data["layers.0"].v_cache is cache.tensors["v"]
    reset_forward_context()
    assert get_forward_context() == ForwardContext()


@pytest.mark.parametrize("token_graph", [True, False])
def test_a_settled_token_graph_means_replay(token_graph: bool) -> None:
    mode = ForwardMode("token" if token_graph else "eager", 4, 4, token_graph, None, "test")
    set_forward_context(None, None, _context(), forward_mode=mode)
    assert get_forward_context().tr_graph == ("replay" if token_graph else None)


def test_tr_graph_given_wins_over_the_forward_mode() -> None:
    mode = ForwardMode("token", 4, 4, True, None, "test")
    set_forward_context(None, None, _context(), forward_mode=mode, tr_graph="record")
    assert get_forward_context().tr_graph == "record"


def test_the_with_form_gives_back_the_context_before_it_when_the_body_raises() -> None:
    outer = _context()
    set_forward_context(None, None, outer)

    def body() -> None:
        with forward_context(None, None, _context()) as inner:
            assert get_forward_context() is inner
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        body()
    assert get_forward_context().context is outer


def test_one_number_a_rank_becomes_dp_metadata_for_every_rank() -> None:
    config = cast("Any", SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_size=3)))
    set_forward_context(None, config, _context(), running_tokens_per_dp_rank=8)
    assert get_forward_context().dp_metadata == DPMetadata((8, 8, 8))
    set_forward_context(None, config, _context(), running_tokens_per_dp_rank=[8, 2, 4])
    metadata = get_forward_context().dp_metadata
    assert metadata is not None
    assert metadata.max_tokens_across_dp == 8
    assert metadata.cu_tokens_across_dp == (8, 10, 14)


def test_dp_metadata_given_is_kept() -> None:
    given = DPMetadata((1, 2))
    set_forward_context(None, None, _context(), running_tokens_per_dp_rank=4, dp_metadata=given)
    assert get_forward_context().dp_metadata is given


def test_spec_decode_rows_judge_drafts_and_then_the_bonus() -> None:
    metadata = SpecDecodeMetadata.make([[7, 8], [], [9]])
    assert metadata.draft_token_ids.tolist() == [7, 8, 9]
    assert metadata.num_draft_tokens == [2, 0, 1]
    assert metadata.cu_num_draft_tokens.tolist() == [2, 2, 3]
    assert metadata.logits_indices.tolist() == [0, 1, 2, 3, 4, 5]
    assert metadata.target_logits_indices.tolist() == [0, 1, 4]
    assert metadata.bonus_logits_indices.tolist() == [2, 3, 5]
    assert metadata.cu_num_draft_tokens.dtype == torch.int32
