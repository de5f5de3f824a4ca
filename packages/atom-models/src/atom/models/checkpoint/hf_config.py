"""One shape for a model's configuration, whichever release of the public libraries wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atom.models.checkpoint.names import shown
from atom.models.errors import ModelConfigError

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = ("float32", "float16", "bfloat16")


def normalise_config(path: Path, config: Mapping[str, Any], *, saved_dtype: str) -> dict[str, Any]:
    """`config.json` as models here read it.

    Everything is kept; these are brought into one form: `architectures` is a list of one name; `dtype` is a
    torch name (older files say `torch_dtype`, and `saved_dtype`, what the tensors are, stands in where
    neither says); `rope_theta` and `rope_scaling` are top-level fields (newer files say `rope_parameters`,
    which is removed), and `rope_scaling` is None or an object whose `rope_type` is not `default`.

    Raises:
        ModelConfigError: no architecture, an unknown dtype, or RoPE fields that are no such thing.
    """
    result = dict(config)
    architectures = config.get("architectures")
    if (
        not isinstance(architectures, list)
        or len(architectures) != 1
        or not isinstance(architectures[0], str)
    ):
        raise ModelConfigError(
            f"{path}: configuration field architectures is {shown(architectures)}, expected a list of one "
            "name"
        )
    stated = result.pop("torch_dtype", None)
    result["dtype"] = _dtype(path, config.get("dtype") or stated or saved_dtype)
    _normalise_rope(path, result)
    return result


def _dtype(path: Path, value: Any) -> str:
    name = value.removeprefix("torch.") if isinstance(value, str) else value
    if name not in DTYPES:
        raise ModelConfigError(f"{path}: dtype is {shown(value)}, expected one of {', '.join(DTYPES)}")
    return str(name)


def _normalise_rope(path: Path, config: dict[str, Any]) -> None:
    scaling = config.get("rope_scaling")
    parameters = config.pop("rope_parameters", None)
    if parameters is not None:
        scaling = parameters
    if scaling is None:
        config["rope_scaling"] = None
        return
    if not isinstance(scaling, Mapping):
        raise ModelConfigError(f"{path}: RoPE scaling is {shown(scaling)}, expected an object")
    if any(isinstance(value, Mapping) for value in scaling.values()):
        # One set of parameters a kind of layer: only the model knows its kinds.
        config["rope_parameters"] = dict(scaling)
        config["rope_scaling"] = None
        return
    settings = dict(scaling)
    theta = settings.pop("rope_theta", None)
    if theta is not None:
        config["rope_theta"] = theta
    rotary_part = settings.pop("partial_rotary_factor", None)
    if rotary_part is not None:
        config["partial_rotary_factor"] = rotary_part
    kind = settings.pop("type", None)
    settings.setdefault("rope_type", kind)
    if settings["rope_type"] is None and len(settings) > 1:
        raise ModelConfigError(f"{path}: RoPE scaling {shown(settings)} has no rope_type")
    config["rope_scaling"] = None if settings["rope_type"] in (None, "default") else settings
