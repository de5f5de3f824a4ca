"""Small checkpoints made on the spot, in both formats."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

HfCheckpoint = tuple[Path, dict[str, Any], dict[str, torch.Tensor]]


@pytest.fixture
def save_llama(tmp_path: Path) -> Callable[..., HfCheckpoint]:
    """Saves a random Llama as transformers does; returns its folder, `config.json` fields and weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def save(folder: str = "hf", **fields: Any) -> HfCheckpoint:
        settings: dict[str, Any] = {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "vocab_size": 96,
            "max_position_embeddings": 128,
            "rope_theta": 10000.0,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **fields,
        }
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**settings))
        for parameter in model.parameters():  # norms of all ones and biases of zero would hide a mix-up
            parameter.data.normal_(0.0, 0.2)
        model.save_pretrained(tmp_path / folder)
        return tmp_path / folder, settings, {k: v.clone() for k, v in model.state_dict().items()}

    return save


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _GGUF_NAMES:
        return f"{_GGUF_NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_GGUF_NAMES[part]}.{kind}"


def _interleave(weights: np.ndarray, heads: int) -> np.ndarray:
    """The public converter's row order for Llama: of each head, the two halves alternate."""
    half = weights.shape[0] // heads // 2
    order = [
        head * 2 * half + part * half + i for head in range(heads) for i in range(half) for part in range(2)
    ]
    return weights[order]


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes Hugging Face weights as a GGUF file, laid out as the public converter does it."""

    def write(
        fields: Mapping[str, Any],
        weights: Mapping[str, torch.Tensor],
        *,
        name: str = "model.gguf",
        architecture: str = "llama",
        quantisation: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
        extra: Callable[[gguf.GGUFWriter], None] | None = None,
    ) -> Path:
        path = tmp_path / name
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_block_count(fields["num_hidden_layers"])
        writer.add_context_length(fields["max_position_embeddings"])
        writer.add_embedding_length(fields["hidden_size"])
        writer.add_feed_forward_length(fields["intermediate_size"])
        writer.add_head_count(fields["num_attention_heads"])
        writer.add_head_count_kv(fields["num_key_value_heads"])
        writer.add_rope_freq_base(fields["rope_theta"])
        writer.add_layer_norm_rms_eps(fields["rms_norm_eps"])
        if "head_dim" in fields:
            writer.add_key_length(fields["head_dim"])
            writer.add_value_length(fields["head_dim"])
        if extra is not None:
            extra(writer)
        heads = {"q_proj": fields["num_attention_heads"], "k_proj": fields["num_key_value_heads"]}
        for hf_name, tensor in weights.items():
            if hf_name == "lm_head.weight" and fields["tie_word_embeddings"]:
                continue
            values = tensor.numpy()
            part = hf_name.split(".")[-2]
            if architecture == "llama" and part in heads and len(values) % (2 * heads[part]) == 0:
                values = _interleave(values, heads[part])
            if values.ndim == 1:  # the converter never rounds vectors
                writer.add_tensor(_gguf_name(hf_name), values)
            else:
                stored = gguf.quants.quantize(values, quantisation)
                writer.add_tensor(_gguf_name(hf_name), stored, raw_dtype=quantisation)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


class GGUFBytes:
    """A GGUF file put together field by field, so that any of them may lie."""

    def __init__(self, version: int = 3) -> None:
        self.version = version
        self.pairs: list[bytes] = []
        self.rows: list[bytes] = []
        self.tensor_count: int | None = None
        self.pair_count: int | None = None
        self.data = b""

    @staticmethod
    def text(value: str | bytes) -> bytes:
        raw = value.encode() if isinstance(value, str) else value
        return struct.pack("<Q", len(raw)) + raw

    def pair(self, key: str | bytes, type_: int, value: bytes) -> GGUFBytes:
        self.pairs.append(self.text(key) + struct.pack("<I", type_) + value)
        return self

    def string(self, key: str, value: str) -> GGUFBytes:
        return self.pair(key, 8, self.text(value))

    def uint32(self, key: str, value: int) -> GGUFBytes:
        return self.pair(key, 4, struct.pack("<I", value))

    def tensor(
        self, name: str | bytes, dimensions: Sequence[int], *, type_: int = 0, offset: int = 0
    ) -> GGUFBytes:
        packed = struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, type_, offset)
        self.rows.append(self.text(name) + packed)
        return self

    def build(self, *, alignment: int = 32) -> bytes:
        tensors = len(self.rows) if self.tensor_count is None else self.tensor_count
        pairs = len(self.pairs) if self.pair_count is None else self.pair_count
        head = b"GGUF" + struct.pack("<IQQ", self.version, tensors, pairs)
        head += b"".join(self.pairs) + b"".join(self.rows)
        return head + b"\0" * (-len(head) % alignment) + self.data


@pytest.fixture(scope="session")
def gguf_bytes() -> type[GGUFBytes]:
    """Builder of GGUF files by hand."""
    return GGUFBytes


@pytest.fixture(scope="session")
def safetensors_bytes() -> Callable[..., bytes]:
    """Builds a safetensors file from the text of its header."""

    def build(header: str | bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
        raw = header.encode() if isinstance(header, str) else header
        return struct.pack("<Q", len(raw) if length is None else length) + raw + data

    return build
