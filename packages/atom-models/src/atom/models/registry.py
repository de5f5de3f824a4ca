"""What this package offers to runners: the architectures it builds, and how a checkpoint becomes a model.

`provider` is the object behind the entry point `atom-models` of the group `atom.models`.
"""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atom.models.checkpoint import Checkpoint, open_checkpoint, progress_bar
from atom.models.checkpoint.claimed_sizes import check_claimed_sizes
from atom.models.checkpoint.names import shown
from atom.models.errors import ModelConfigError, UnsupportedCheckpointError
from atom.models.layers.errors import LayerArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    import torch

    from atom.config import Config
    from atom.models.checkpoint import Progress

    LoadProgress = Callable[[str, int, int], None]

_LOADING = "Loading weights"


@dataclass(frozen=True, slots=True)
class Architecture:
    """Where an architecture's class is; it is imported when a model is built.

    The class names its `config_class`, which has `from_hf(config)`; it is made by `(config, atom_config=,
    device=, dtype=)` and filled by `load_weights(checkpoint, progress=)`.
    """

    module: str
    class_name: str

    def load(self) -> Any:
        """The class."""
        return getattr(importlib.import_module(self.module), self.class_name)


class AtomModels:
    """Models built from checkpoints that this package reads, as a runner's `ModelProvider`."""

    def __init__(
        self, architectures: Mapping[str, Architecture], *, name: str, opens_others: bool = False
    ) -> None:
        """
        Args:
            architectures: Hugging Face's class name -> where ours is.
            name: the distribution that brings them.
            opens_others: whether checkpoints of other architectures are opened too, to be refused by name
                when they are to be built; else they are left to other packages.
        """
        self.architectures = dict(architectures)
        self.name = name
        self._opens_others = opens_others

    def open(self, path: Path) -> Checkpoint | None:
        """The checkpoint at `path`, None if it is of no format known here, or somebody else's to build.

        Raises:
            CheckpointError: there is nothing at `path`, or it is of a known format and cannot be used.
        """
        checkpoint = open_checkpoint(path)
        if checkpoint is None or self._opens_others or checkpoint.architecture in self.architectures:
            return checkpoint
        return None

    def describe(self, architecture: str) -> dict[str, Any]:
        """`recording_unit`, the class that is recorded, and `regions`, where its token graphs break.

        Raises:
            KeyError: no such architecture.
            Exception: its class cannot be imported.
        """
        model_class = self.architectures[architecture].load()
        unit = getattr(model_class, "model_class", model_class)
        return {"recording_unit": unit.__name__, "regions": list(getattr(model_class, "regions", ()))}

    def build(
        self,
        checkpoint: Checkpoint,
        atom_config: Config,
        *,
        device: torch.device,
        dtype: torch.dtype,
        progress: LoadProgress | None = None,
    ) -> Any:
        """The checkpoint's model on `device`, in `dtype`, with its weights loaded.

        `progress` is told what is being done, and bytes done of bytes in all; without it a bar is drawn on
        standard error, if that is a terminal.

        Raises:
            UnsupportedCheckpointError: no class for its architecture, or quantised in a way that is not
                supported.
            ModelConfigError: its configuration describes no model that can be built.
            WeightsError: its tensors do not fit the model.
        """
        model_class = self._architecture_of(checkpoint).load()
        check_claimed_sizes(checkpoint)
        try:
            config = model_class.config_class.from_hf(checkpoint.config)
            model = model_class(config, atom_config=atom_config, device=device, dtype=dtype)
        except (
            ModelConfigError,
            LayerArgumentError,
        ) as error:  # they know the setting, not where it came from
            raise ModelConfigError(f"{checkpoint.path}: {error}") from error
        with _reporting(progress) as report:
            model.load_weights(checkpoint, progress=report)
        return model

    def _architecture_of(self, checkpoint: Checkpoint) -> Architecture:
        architecture = self.architectures.get(checkpoint.architecture)
        if architecture is None:
            raise UnsupportedCheckpointError(
                f"{checkpoint.path}: architecture {shown(checkpoint.architecture)} is not supported; "
                f"supported are {', '.join(self.architectures)}"
            )
        if checkpoint.quantization is not None:
            raise UnsupportedCheckpointError(
                f"{checkpoint.path}: weights quantised with {shown(checkpoint.quantization)} are not "
                "supported; "
                "supported are plain float32, float16 and bfloat16 weights, and GGUF's block formats"
            )
        return architecture


def _reporting(progress: LoadProgress | None) -> AbstractContextManager[Progress]:
    if progress is None:
        return progress_bar(_LOADING)

    def report(done_bytes: int, total_bytes: int) -> None:
        progress(_LOADING, done_bytes, total_bytes)

    return nullcontext(report)


provider = AtomModels(
    {
        "LlamaForCausalLM": Architecture("atom.models.llama.model", "LlamaForCausalLM"),
        "MistralForCausalLM": Architecture("atom.models.mistral.model", "MistralForCausalLM"),
        "Qwen3ForCausalLM": Architecture("atom.models.qwen3.model", "Qwen3ForCausalLM"),
        "Qwen3MoeForCausalLM": Architecture("atom.models.qwen3_moe.model", "Qwen3MoeForCausalLM"),
        "MixtralForCausalLM": Architecture("atom.models.mixtral.model", "MixtralForCausalLM"),
        "DeepseekV4ForCausalLM": Architecture("atom.models.deepseek_v4.model", "DeepseekV4ForCausalLM"),
    },
    name="atom-models",
    opens_others=True,
)
