"""Opening a GGUF file: its tensors under Hugging Face names, in Hugging Face's row order."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np
import torch

from atom.models.checkpoint.checkpoint import Checkpoint, TensorInfo
from atom.models.checkpoint.generation import from_gguf
from atom.models.checkpoint.gguf_config import gguf_architecture, gguf_config
from atom.models.checkpoint.gguf_dequant import dequantise
from atom.models.checkpoint.gguf_header import GGUFHeader, GGUFTensor, read_gguf_header
from atom.models.checkpoint.gguf_names import ROPE_FACTORS, hf_name, permuted_heads
from atom.models.checkpoint.gguf_tokenizer import read_gguf_tokenizer
from atom.models.checkpoint.gguf_types import FLOATS
from atom.models.checkpoint.names import shown
from atom.models.errors import CorruptCheckpointError, UnsupportedCheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class GGUFFile:
    """A mapped GGUF file with its checked header. Tensors go by GGUF's names and in GGUF's row order."""

    def __init__(self, path: Path) -> None:
        """Map `path` and check its header.

        Raises:
            CheckpointError: see `read_gguf_header`.
        """
        self.path = path
        self._bytes = _map(path)
        self.header: GGUFHeader = read_gguf_header(path, self._bytes.data)

    def raw(self, tensor: GGUFTensor) -> np.ndarray:
        """The bytes of one tensor, a read-only view of the map: uint8 `[nbytes]`."""
        return self._bytes[tensor.offset : tensor.offset + tensor.nbytes]


class GGUFSource:
    """A GGUF file's tensors as a model wants them: Hugging Face names and Hugging Face's row order."""

    def __init__(self, file: GGUFFile, *, query_heads: int, key_heads: int, permuted_rows: bool) -> None:
        self._file = file
        self._stored: dict[str, tuple[GGUFTensor, int | None]] = {}
        for name, tensor in file.header.tensors.items():
            if name == ROPE_FACTORS:
                continue
            heads = (
                permuted_heads(name, query_heads=query_heads, key_heads=key_heads) if permuted_rows else None
            )
            if heads is not None and tensor.shape[0] % (2 * heads):
                raise CorruptCheckpointError(
                    f"{file.path}: tensor {shown(name)} has {tensor.shape[0]} rows, no multiple of 2 x "
                    f"{heads} heads"
                )
            self._stored[hf_name(file.path, name)] = (tensor, heads)
        self._infos = {
            name: TensorInfo(
                name, tensor.shape, FLOATS.get(tensor.type.name, tensor.type.name), tensor.nbytes
            )
            for name, (tensor, _) in self._stored.items()
        }

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """One tensor by its Hugging Face name, decoded, in memory of its own."""
        tensor, _ = self._stored[name]
        stored = getattr(torch, FLOATS.get(tensor.type.name, "float32"))
        values = torch.empty(tensor.shape, dtype=stored if dtype is None else dtype)
        self.read_into(name, values)
        return values

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """As `read`, into a contiguous tensor of the same shape; on the CPU without a copy between."""
        if out.device.type != "cpu":
            out.copy_(self.read(name, out.dtype))
            return
        tensor, heads = self._stored[name]
        raw = self._file.raw(tensor)
        if heads is not None:
            # Rows are whole blocks, so they can be put in order before they are decoded, when they are small.
            raw = unpermute_rows(raw.reshape(tensor.shape[0], -1), heads)
        dequantise(raw, tensor.type, out)


def unpermute_rows(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo the converter's reordering of query or key rows `[heads * head_dim, ...]`.

    Within a head, the converter stores row 0, row head_dim/2, row 1, row head_dim/2 + 1, and so on. `heads`
    is the number of heads of this very tensor: key heads for keys, which are fewer than query heads under
    grouped attention.
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def open_gguf(path: Path) -> Checkpoint:
    """Open one GGUF file.

    Raises:
        CheckpointError: damaged, cut off, or of an architecture, number format or setting that is not
            supported.
    """
    file = GGUFFile(path)
    header = file.header
    if header.metadata.get("split.count", 0) not in (0, 1):
        raise UnsupportedCheckpointError(
            f"{path}: one of {shown(header.metadata['split.count'])} parts; join them into one file first "
            "(gguf-split --merge)"
        )
    config = gguf_config(header, rope_factors=_rope_factors(file))
    source = GGUFSource(
        file,
        query_heads=config["num_attention_heads"],
        key_heads=config["num_key_value_heads"],
        permuted_rows=gguf_architecture(header).permuted_rows,
    )
    generation = from_gguf(path, header.metadata)
    config["eos_token_id"] = list(generation.eos_token_ids)
    config["bos_token_id"] = generation.bos_token_id
    return Checkpoint(
        path,
        format="gguf",
        config=config,
        source=source,
        generation=generation,
        read_tokenizer=lambda: read_gguf_tokenizer(path, header.metadata),
    )


def _rope_factors(file: GGUFFile) -> np.ndarray | None:
    """Llama 3's divisors of the RoPE frequencies, float32 of any shape, for a file that has them."""
    tensor = file.header.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return None
    factors = torch.empty(tensor.shape, dtype=torch.float32)
    dequantise(file.raw(tensor), tensor.type, factors)
    return factors.numpy()


def _map(path: Path) -> np.ndarray:
    """The file's bytes, mapped read-only."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # what mmap says of an empty file
        raise CorruptCheckpointError(f"{path}: the file is empty") from None
    except OSError as error:
        raise CorruptCheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    return np.frombuffer(mapped, dtype=np.uint8)
