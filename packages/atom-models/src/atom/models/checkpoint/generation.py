"""What a checkpoint suggests for generating: tokens that end an answer, and sampling values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atom.models.checkpoint.names import shown
from atom.models.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_ALWAYS = ("repetition_penalty",)
_WHEN_SAMPLING = ("temperature", "top_k", "top_p", "min_p")

_GGUF_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_GGUF_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Defaults that came with the weights.

    `sampling` holds only what the checkpoint states, by Hugging Face's names; a checkpoint that decodes
    greedily states no temperature.
    """

    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)


def from_hf(
    path: Path, config: Mapping[str, Any], generation_config: Mapping[str, Any]
) -> GenerationDefaults:
    """Defaults from `generation_config.json`, completed from `config.json`.

    Raises:
        CorruptCheckpointError: an id or a sampling value is no number.
    """

    def stated(key: str) -> Any:
        value = generation_config.get(key)
        return config.get(key) if value is None else value

    keys = _ALWAYS + (_WHEN_SAMPLING if generation_config.get("do_sample") is True else ())
    sampling = {
        key: _number(path, key, generation_config[key])
        for key in keys
        if generation_config.get(key) is not None
    }
    bos_ids = _token_ids(path, "bos_token_id", stated("bos_token_id"))
    return GenerationDefaults(
        eos_token_ids=_token_ids(path, "eos_token_id", stated("eos_token_id")),
        bos_token_id=bos_ids[0] if bos_ids else None,
        sampling=sampling,
    )


def from_gguf(path: Path, metadata: Mapping[str, Any]) -> GenerationDefaults:
    """Defaults from GGUF metadata: end of text, of turn and of message all end an answer.

    Raises:
        CorruptCheckpointError: an id or a sampling value is no number.
    """
    eos: dict[int, None] = {}
    for key in _GGUF_EOS_KEYS:
        eos.update(dict.fromkeys(_token_ids(path, key, metadata.get(f"tokenizer.ggml.{key}"))))
    bos_ids = _token_ids(path, "bos_token_id", metadata.get("tokenizer.ggml.bos_token_id"))
    sampling = {
        name: _number(path, key, metadata[f"general.sampling.{key}"])
        for key, name in _GGUF_SAMPLING.items()
        if f"general.sampling.{key}" in metadata
    }
    return GenerationDefaults(tuple(eos), bos_ids[0] if bos_ids else None, sampling)


def _token_ids(path: Path, key: str, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    for id_ in ids:
        if isinstance(id_, bool) or not isinstance(id_, int) or id_ < 0:
            raise CorruptCheckpointError(f"{path}: {key} is {shown(value)}, expected token ids")
    return tuple(ids)


def _number(path: Path, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CorruptCheckpointError(f"{path}: {key} is {shown(value)}, expected a number")
    return value
