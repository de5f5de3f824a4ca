"""Sizes a configuration claims, held against the tensors that are there, before memory is taken for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from atom.models.errors import ModelConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atom.models.checkpoint.checkpoint import Checkpoint

LONGEST_CONTEXT = 1 << 24
"""More tokens than any model was made for; tables over positions are as long as the context."""

_WIDTHS = (
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
_LAYER = re.compile(r"model\.layers\.(\d{1,9})\.")


def check_claimed_sizes(checkpoint: Checkpoint) -> None:
    """Refuse a configuration whose model could not possibly be filled from the checkpoint.

    A wrong size that is merely a little off is left to loading, which compares every shape; this is about
    numbers so large that building the model for that comparison would take the machine down.

    Raises:
        ModelConfigError: a width above every dimension of every tensor, more layers than the tensors belong
            to, or a context longer than `LONGEST_CONTEXT`.
    """
    largest = max((dimension for info in checkpoint.tensors.values() for dimension in info.shape), default=0)
    widths = {name: _whole(checkpoint, name) for name in _WIDTHS}
    widths["num_attention_heads x head_dim"] = widths["num_attention_heads"] * widths["head_dim"]
    for name, width in widths.items():
        if width > largest:
            raise ModelConfigError(
                f"{checkpoint.path}: configuration field {name} is {width}, "
                f"but no tensor has a dimension above {largest}"
            )
    layers, found = _whole(checkpoint, "num_hidden_layers"), _layer_count(checkpoint.tensors)
    if layers > found:
        raise ModelConfigError(
            f"{checkpoint.path}: configuration field num_hidden_layers is {layers}, "
            f"but there are tensors of {found} layers"
        )
    if checkpoint.max_model_len > LONGEST_CONTEXT:
        raise ModelConfigError(
            f"{checkpoint.path}: configuration field max_position_embeddings is {checkpoint.max_model_len}, "
            f"more than {LONGEST_CONTEXT}"
        )


def _whole(checkpoint: Checkpoint, name: str) -> int:
    """The field's value, 0 where there is none; what is no number is left to the model to name."""
    value = checkpoint.config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _layer_count(names: Iterable[str]) -> int:
    return len({match[1] for match in map(_LAYER.match, names) if match is not None})
