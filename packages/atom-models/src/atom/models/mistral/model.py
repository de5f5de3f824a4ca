"""The dense Mistral architecture: a Llama, as long as no sequence outgrows its sliding window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from atom.models.errors import ModelConfigError
from atom.models.llama.config import LlamaConfig
from atom.models.llama.model import LlamaForCausalLM, LlamaModel

if TYPE_CHECKING:
    import torch

    from atom.config import Config
    from atom.models.checkpoint.config_fields import ConfigFields


@dataclass(frozen=True, slots=True, kw_only=True)
class MistralConfig(LlamaConfig):
    """Sizes and settings of a Mistral."""

    title: ClassVar[str] = "Mistral"
    architecture: ClassVar[str] = "MistralForCausalLM"

    sliding_window: int | None
    """Tokens that a token sees, itself included; None: all before it."""

    @classmethod
    def own_fields(cls, fields: ConfigFields) -> dict[str, Any]:
        """The window."""
        window = None if fields.value("sliding_window", None) is None else fields.size("sliding_window")
        return {"sliding_window": window}


class MistralModel(LlamaModel):
    """The unit that is recorded and compiled, a Llama's."""


class MistralForCausalLM(LlamaForCausalLM):
    """A Mistral with its head, as a runner drives it."""

    config_class: type[LlamaConfig] = MistralConfig
    model_class = MistralModel

    def __init__(
        self, config: MistralConfig, *, atom_config: Config, dtype: torch.dtype, device: torch.device
    ) -> None:
        """
        Raises:
            ModelConfigError: sequences may become longer than the window, which attention here does not have.
        """
        longest = atom_config.model_config.max_model_len or config.max_position_embeddings
        if config.sliding_window is not None and longest > config.sliding_window:
            raise ModelConfigError(
                f"Mistral configuration: sliding_window is {config.sliding_window}, and attention here sees "
                f"every token: run it with max_model_len={config.sliding_window} or less, not {longest}"
            )
        super().__init__(config, atom_config=atom_config, dtype=dtype, device=device)
