"""The op as a model calls it: found by layer id, errors that name what is missing."""

from __future__ import annotations

import pytest
import torch

from atom.compile.custom_op import op_overload, registered_op_func
from atom.compile.split import split_graph
from atom.graphs.forward_context import (
    AttentionMetaData,
    Context,
    KVCacheTensor,
    StaticForwardContext,
    forward_context,
)
from atom.graphs.marks import region_of
from atom.models.layers import Attention, AttentionSetupError, LayerArgumentError

OP = "aiter.unified_attention_with_output"


def inputs(rows: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, 4, 8), torch.randn(rows, 2, 8), torch.randn(rows, 2, 8)


def metadata() -> AttentionMetaData:
    return AttentionMetaData(
        cu_seqlens_q=torch.tensor([0, 2], dtype=torch.int32),
        seq_lens=torch.tensor([2], dtype=torch.int32),
        block_tables=torch.tensor([[1]], dtype=torch.int32),
        slot_mapping=torch.tensor([4, 5]),
        max_seqlen_q=2,
        max_seqlen_k=2,
        query_lens_host=[2],
        seq_lens_host=[2],
    )


def caches() -> dict[str, KVCacheTensor]:
    return {"a": KVCacheTensor(0, {"k": torch.zeros(2, 4, 2, 8), "v": torch.zeros(2, 4, 2, 8)})}


@pytest.fixture
def layer() -> Attention:
    return Attention(4, 2, 8, layer_id=3, layer_name="a")


def test_the_op_is_a_bucket_fixed_region_and_a_split_op():
    region = region_of(registered_op_func(op_overload(OP)))
    assert region is not None
    assert region.bucket_fixed
    graph = torch.fx.Graph()
    tensors = [graph.placeholder(name) for name in ("query", "key", "value", "output")]
    graph.call_function(op_overload(OP), (*tensors, 3))
    graph.output(graph.call_function(torch.ops.aten.relu.default, (tensors[3],)))
    _, items = split_graph(torch.fx.GraphModule(torch.nn.Module(), graph), [])
    assert [item.is_splitting_graph for item in items] == [True, False]


def test_the_op_writes_output_and_nothing_else_of_its_arguments():
    schema = op_overload(OP)._schema
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    assert written == ["output"]
    assert [str(a.type) for a in schema.arguments] == ["Tensor"] * 4 + ["int"]
    assert not schema.returns


def test_plain_metadata_and_metadata_by_layer_name_attend(layer):
    query, key, value = inputs()
    results = []
    for form in (metadata(), {"a": metadata()}):
        static = StaticForwardContext({3: layer}, caches())
        with forward_context(form, None, Context(torch.arange(2)), static=static):
            results.append(layer(query, key, value))
    assert results[0].shape == (2, 32)
    assert torch.equal(results[0], results[1])
    # the first row sees itself alone
    torch.testing.assert_close(results[0][0].view(4, 8), value[0].repeat_interleave(2, 0))


def test_without_a_step_the_output_is_zero(layer):
    assert not layer(*inputs()).any()


def test_a_layer_the_context_does_not_know_is_named(layer):
    with (
        forward_context(metadata(), None, None, static=StaticForwardContext({7: layer}, caches())),
        pytest.raises(AttentionSetupError, match="layer 3 is not in the forward context, which has 7"),
    ):
        layer(*inputs())


def test_a_missing_cache_is_named(layer):
    with (
        forward_context(metadata(), None, None, static=StaticForwardContext({3: layer}, {})),
        pytest.raises(AttentionSetupError, match="'a' has no cache"),
    ):
        layer(*inputs())


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 3), (4, 0), (2, 4)])
def test_heads_that_do_not_share_evenly_are_refused(heads, kv_heads):
    with pytest.raises(LayerArgumentError, match=f"{heads} query heads cannot share {kv_heads} key heads"):
        Attention(heads, kv_heads, 8, layer_id=0, layer_name="a")


def test_cache_spec_has_a_row_for_keys_and_one_for_values(layer):
    specs = layer.cache_spec("bfloat16")
    assert [(spec.layer_name, spec.name, spec.kind, spec.row_shape) for spec in specs] == [
        ("a", "k", "paged", (2, 8)),
        ("a", "v", "paged", (2, 8)),
    ]
    assert all(spec.dtype == "bfloat16" for spec in specs)
