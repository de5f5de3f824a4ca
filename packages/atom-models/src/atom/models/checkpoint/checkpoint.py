"""An opened checkpoint: configuration, tensors by name, tokenizer and generation defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from atom.models.checkpoint.names import shown
from atom.models.errors import ModelConfigError, WeightsError

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from atom.models.checkpoint.generation import GenerationDefaults
    from atom.models.checkpoint.tokenizer_data import TokenizerData


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a file says of one tensor before its data is touched.

    `shape` is in torch's order (`[out, in]` for a linear). `dtype` is the stored format: a torch name
    (`"float32"`, `"bfloat16"`, ...) or a GGUF block format (`"Q4_1"`). `nbytes` is its size in the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


class TensorSource(Protocol):
    """Where a checkpoint's tensors come from; one implementation a file format."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def read(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor: ...

    def read_into(self, name: str, out: torch.Tensor) -> None: ...


class Checkpoint:
    """A checkpoint opened lazily: headers are read and checked, weights only when asked for.

    Models see Hugging Face names only, in `config` as in `tensors`, whichever format is underneath.
    """

    def __init__(
        self,
        path: Path,
        *,
        format: str,  # noqa: A002  the word the seam uses
        config: Mapping[str, Any],
        source: TensorSource,
        generation: GenerationDefaults,
        read_tokenizer: Callable[[], TokenizerData | None],
    ) -> None:
        self.path = path
        self.format = format
        self.config: dict[str, Any] = dict(config)
        self.generation = generation
        self._source = source
        self._read_tokenizer = read_tokenizer

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, format={self.format!r}, architecture={self.architecture!r})"

    @property
    def architecture(self) -> str:
        """Hugging Face class name, such as `LlamaForCausalLM`."""
        return str(self.config["architectures"][0])

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return self._positive("vocab_size")

    @property
    def max_model_len(self) -> int:
        """Tokens of context the checkpoint was made for."""
        return self._positive("max_position_embeddings")

    @property
    def dtype(self) -> str:
        """Torch's name of the dtype the weights were saved in; `bfloat16` for GGUF's block formats."""
        return str(self.config["dtype"])

    @property
    def quantization(self) -> str | None:
        """Name of the quantisation method in the configuration (`fp8`, `gptq`, ...), None for plain weights.

        GGUF block formats are not named here: `read` decodes them.
        """
        settings = self.config.get("quantization_config")
        if not isinstance(settings, Mapping):
            return None
        return str(settings.get("quant_method", "unnamed"))

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by its Hugging Face name, in file order."""
        return self._source.tensors

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all weights as stored."""
        return sum(info.nbytes for info in self.tensors.values())

    @cached_property
    def tokenizer(self) -> TokenizerData | None:
        """The tokenizer, read on first use; None if the checkpoint has none.

        Raises:
            CheckpointError: there is one, and it is damaged or of an unknown kind.
        """
        return self._read_tokenizer()

    def read(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """One tensor, on the CPU, decoded from a block format where it is in one.

        Args:
            name: its Hugging Face name.
            dtype: what to return; None keeps the stored dtype (float32 for block formats).

        Raises:
            WeightsError: no such tensor.
            CorruptCheckpointError: the file changed under us.
        """
        self._check_present(name)
        return self._source.read(name, dtype)

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """One tensor into `out`, contiguous and of the same shape, in its dtype and on its device.

        Raises:
            WeightsError: no such tensor, or of another shape.
            CorruptCheckpointError: the file changed under us.
        """
        self._check_present(name)
        shape = self.tensors[name].shape
        if tuple(out.shape) != shape or not out.is_contiguous():
            raise WeightsError(
                f"{self.path}: tensor {shown(name)} is {list(shape)}, which does not fill {list(out.shape)}"
            )
        self._source.read_into(name, out)

    def _check_present(self, name: str) -> None:
        if name not in self.tensors:
            raise WeightsError(f"{self.path}: no tensor {shown(name)} in this checkpoint")

    def _positive(self, key: str) -> int:
        value = self.config.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelConfigError(
                f"{self.path}: configuration field {key} is {shown(value)}, expected a positive whole number"
            )
        return value
