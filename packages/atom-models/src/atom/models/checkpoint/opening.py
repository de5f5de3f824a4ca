"""From a path to a checkpoint: which format is it, and whose fault is it if none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from atom.models.checkpoint.gguf_header import MAGIC
from atom.models.checkpoint.hf_folder import CONFIG_FILE, open_hf_folder
from atom.models.errors import CheckpointError, CorruptCheckpointError

if TYPE_CHECKING:
    from atom.models.checkpoint.checkpoint import Checkpoint


def open_checkpoint(path: Path) -> Checkpoint | None:
    """Open a Hugging Face folder, a GGUF file, or a folder with exactly one GGUF file.

    Returns:
        The checkpoint, or None if what is there is of no format known here.

    Raises:
        CheckpointError: there is nothing at `path`, or it is of a known format and cannot be used.
    """
    path = Path(path)
    try:
        if path.is_dir():
            return _open_folder(path)
        if not path.exists():
            raise CheckpointError(f"{path}: no such file or folder")
        if not path.is_file():  # opening a pipe would wait for whoever writes to it
            raise CheckpointError(f"{path}: not a regular file or folder")
        return _open_file(path)
    except OSError as error:  # such as a name with a NUL in it, or a folder nobody may look into
        raise CheckpointError(f"{path}: cannot be opened: {error.strerror or error}") from None
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{str(path)!r}: cannot be opened: {error}") from None


def _open_folder(folder: Path) -> Checkpoint | None:
    if (folder / CONFIG_FILE).is_file():
        return open_hf_folder(folder)
    gguf_files = sorted(folder.glob("*.gguf"))
    if len(gguf_files) > 1:
        raise CheckpointError(
            f"{folder}: {len(gguf_files)} GGUF files; give the path of one, such as {gguf_files[0].name}"
        )
    if gguf_files:
        return _open_gguf(gguf_files[0])
    if any(folder.glob("*.safetensors")):
        raise CorruptCheckpointError(f"{folder}: has weights but no {CONFIG_FILE}")
    return None


def _open_file(path: Path) -> Checkpoint | None:
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path}: weights alone; give the folder that also has {CONFIG_FILE}")
    with path.open("rb") as file:
        begins_as_gguf = file.read(len(MAGIC)) == MAGIC
    return _open_gguf(path) if begins_as_gguf or path.suffix == ".gguf" else None


def _open_gguf(path: Path) -> Checkpoint:
    from atom.models.checkpoint.gguf import open_gguf  # decoding needs torch; telling formats apart does not

    return open_gguf(path)
