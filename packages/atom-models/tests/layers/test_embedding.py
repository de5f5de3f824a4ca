"""Embedding and head, one table or two."""

from __future__ import annotations

import torch

from atom.models.layers import LMHead, TokenEmbedding


def test_a_row_for_each_id():
    embedding = TokenEmbedding(10, 4)
    embedding.weight.data.normal_()
    assert torch.equal(embedding(torch.tensor([3, 3, 9])), embedding.weight[[3, 3, 9]])


def test_logits_are_float32_whatever_the_weights_are():
    head = LMHead(8, 10, dtype=torch.bfloat16)
    head.weight.data.normal_()
    assert head(torch.randn(2, 8).bfloat16()).dtype == torch.float32


def test_a_tied_head_is_the_embedding_also_when_it_is_packed():
    embedding, head = TokenEmbedding(12, 8), LMHead(8, 12)
    head.tie(embedding)
    embedding.weight.data.normal_()
    x = torch.randn(3, 8)
    wanted = x @ embedding.weight.t()
    torch.testing.assert_close(head(x), wanted)
    assert [name for name, _ in head.named_parameters()] == ["weight"]
    head.pack()
    torch.testing.assert_close(head(x), wanted)
    assert embedding.weight.shape == (12, 8)
