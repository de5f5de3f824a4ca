"""Which model runs, where, and in which number format."""

from __future__ import annotations

from dataclasses import dataclass, field

from atom.config.errors import ConfigError
from atom.config.kinds import Integer, Kind, Word
from atom.config.setting import IN_KEY, about, outside_key
from atom.config.settings import Settings

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES_IN_WORDS = "auto, cpu, cuda, cuda:<number>"


@dataclass(frozen=True)
class Device(Kind):
    """A device by torch's spelling, without importing torch; HIP devices are called cuda there."""

    def _check(self, field: str, value: object) -> str:
        name = value.strip().lower() if isinstance(value, str) else ""
        kind, colon, index = name.partition(":")
        if name in ("auto", "cpu", "cuda") or (kind == "cuda" and colon and index.isdecimal()):
            return name
        raise ConfigError(field, value, self.allowed)

    def _allowed(self) -> str:
        return DEVICES_IN_WORDS


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Settings):
    """How a checkpoint is loaded."""

    tokenizer: str | None = field(
        default=None,
        metadata=about(
            "Path of a tokenizer.json to use instead of the checkpoint's own.",
            Kind(optional=True),
            key=outside_key("text is turned into ids before the model runs"),
        ),
    )
    dtype: str = field(
        default="auto",
        metadata=about(
            "Number format of weights and activations. auto: the fastest that suits checkpoint and device.",
            Word(words=DTYPES),
            key=IN_KEY,
        ),
    )
    device: str = field(
        default="auto",
        metadata=about("Where the model runs. auto: the first GPU, else the CPU.", Device(), key=IN_KEY),
    )
    seed: int = field(
        default=0,
        metadata=about(
            "Seed of sampling for requests that bring none of their own.",
            Integer(at_least=0, at_most=2**63 - 1),
            key=outside_key("read by the sampler, outside the model"),
        ),
    )
    max_model_len: int | None = field(
        default=None,
        metadata=about(
            "Longest sequence, prompt and answer together, in tokens. none: the checkpoint's own limit.",
            Integer(at_least=2, optional=True),
            key=IN_KEY,
        ),
    )
    quantization: str | None = field(
        default=None,
        metadata=about(
            "Weight format on the device. none: dtype decides. int8: 8-bit weights, one scale a row.",
            Word(optional=True, words=("int8",)),
            key=IN_KEY,
        ),
    )
