"""RoPE scaling survives the way from `config.json` into a GGUF file and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch

from atom.models.checkpoint.gguf import open_gguf
from atom.models.checkpoint.gguf_rope import llama3_divisors, rope_wavelengths
from atom.models.errors import CorruptCheckpointError, UnsupportedCheckpointError

if TYPE_CHECKING:
    from pathlib import Path


def public_divisors(
    theta: float, dim: int, *, factor: float, low: float, high: float, original: int
) -> torch.Tensor:
    """What transformers' own Llama 3 scaling divides each frequency by."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    config = LlamaConfig(
        hidden_size=dim,
        num_attention_heads=1,
        head_dim=dim,
        max_position_embeddings=1 << 17,
        rope_parameters=scaling,
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    return plain / scaled


@pytest.fixture
def open_with_divisors(
    save_llama: Callable[..., Any], write_gguf: Callable[..., Path]
) -> Callable[..., dict[str, Any]]:
    def open_(divisors: torch.Tensor | None = None, **fields: Any) -> dict[str, Any]:
        _, settings, weights = save_llama(**fields)

        def extra(writer: gguf.GGUFWriter) -> None:
            if divisors is not None:
                writer.add_tensor("rope_freqs.weight", divisors.numpy().astype(np.float32))

        return open_gguf(write_gguf(settings, weights, extra=extra)).config

    return open_


@pytest.mark.parametrize(
    ("theta", "dim", "factor", "low", "high", "original"),
    [
        (500000.0, 128, 8.0, 1.0, 4.0, 8192),  # Llama 3.1
        (500000.0, 64, 32.0, 1.0, 4.0, 8192),  # Llama 3.2
        (10000.0, 16, 4.0, 1.0, 4.0, 64),  # one that fits nothing published
        (10000.0, 64, 4.0, 1.5, 7.0, 300),
        (10000.0, 8, 8.0, 1.0, 4.0, 32),  # so few frequencies that hardly one lies between
        (10000.0, 8, 2.0, 1.0, 2.0, 20),
    ],
)
def test_llama3_scaling_is_recovered_from_its_divisors(
    theta: float,
    dim: int,
    factor: float,
    low: float,
    high: float,
    original: int,
    open_with_divisors: Callable[..., dict[str, Any]],
) -> None:
    divisors = public_divisors(theta, dim, factor=factor, low=low, high=high, original=original)
    config = open_with_divisors(divisors, head_dim=dim, rope_theta=theta)
    scaling = config["rope_scaling"]
    assert scaling["rope_type"] == "llama3"
    assert scaling["factor"] == factor
    again = public_divisors(
        theta,
        dim,
        factor=scaling["factor"],
        low=scaling["low_freq_factor"],
        high=scaling["high_freq_factor"],
        original=scaling["original_max_position_embeddings"],
    )
    torch.testing.assert_close(again, divisors, rtol=1e-4, atol=0.0)
    if original == 8192:  # the published numbers come back as they were written
        assert (scaling["low_freq_factor"], scaling["high_freq_factor"]) == (low, high)
        assert scaling["original_max_position_embeddings"] == original


def test_own_divisors_are_those_of_transformers() -> None:
    own = llama3_divisors(rope_wavelengths(500000.0, 128), factor=8.0, low=1.0, high=4.0, original=8192)
    public = public_divisors(500000.0, 128, factor=8.0, low=1.0, high=4.0, original=8192)
    np.testing.assert_allclose(own, public.numpy(), rtol=1e-5)


def test_divisors_of_one_scale_nothing(open_with_divisors: Callable[..., dict[str, Any]]) -> None:
    assert open_with_divisors(torch.ones(4))["rope_scaling"] is None


@pytest.mark.parametrize(
    ("divisors", "error", "message"),
    [
        (torch.tensor([1.0, 5.0, 2.0, 9.0]), UnsupportedCheckpointError, "follows no known RoPE scaling"),
        (torch.tensor([0.5, 0.5, 0.5, 0.5]), UnsupportedCheckpointError, "follows no known RoPE scaling"),
        (torch.tensor([1.0, 1.0]), CorruptCheckpointError, r"is \[2\], expected 4 positive numbers"),
        (torch.tensor([1.0, 1.0, 1.0, float("nan")]), CorruptCheckpointError, "expected 4 positive numbers"),
        (torch.tensor([1.0, 1.0, 0.0, 2.0]), CorruptCheckpointError, "expected 4 positive numbers"),
    ],
)
def test_divisors_that_make_no_sense_are_refused(
    divisors: torch.Tensor,
    error: type[Exception],
    message: str,
    open_with_divisors: Callable[..., dict[str, Any]],
) -> None:
    with pytest.raises(error, match=rf"rope_freqs\.weight.*{message}"):
        open_with_divisors(divisors)


Metadata = Callable[[gguf.GGUFWriter], None]


def linear(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(2.5)


def old_linear(writer: gguf.GGUFWriter) -> None:
    writer.add_float32("llama.rope.scale_linear", 4.0)


def yarn(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(32)


def yarn_with_everything(writer: gguf.GGUFWriter) -> None:
    yarn(writer)
    writer.add_float32("llama.rope.scaling.yarn_beta_fast", 24.0)
    writer.add_float32("llama.rope.scaling.yarn_beta_slow", 2.0)
    writer.add_float32("llama.rope.scaling.attn_factor", 0.5)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (linear, {"rope_type": "linear", "factor": 2.5}),
        (old_linear, {"rope_type": "linear", "factor": 4.0}),
        (yarn, YARN),
        (
            yarn_with_everything,
            {**YARN, "beta_fast": 24.0, "beta_slow": 2.0, "attention_factor": pytest.approx(0.5693147)},
        ),
        (lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.NONE), None),
    ],
)
def test_scaling_stated_as_metadata(
    extra: Metadata, expected: Any, save_llama: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    _, fields, weights = save_llama()
    assert open_gguf(write_gguf(fields, weights, extra=extra)).config["rope_scaling"] == expected


def test_unknown_scaling_is_refused(save_llama: Callable[..., Any], write_gguf: Callable[..., Path]) -> None:
    _, fields, weights = save_llama()
    long = write_gguf(
        fields, weights, extra=lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
    )
    with pytest.raises(UnsupportedCheckpointError, match="type 'longrope'; supported are none, linear, yarn"):
        open_gguf(long)
