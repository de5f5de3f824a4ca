"""Tensors of safetensors files: one file, or shards listed by an index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atom.models.checkpoint.json_document import read_object
from atom.models.checkpoint.names import check_file_name, check_name, shown
from atom.models.checkpoint.safetensors_header import read_safetensors_header
from atom.models.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from atom.models.checkpoint.checkpoint import TensorInfo

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class SafetensorsSource:
    """Tensors of one or several safetensors files, memory-mapped when first read."""

    def __init__(self, files: Mapping[Path, Mapping[str, TensorInfo]]) -> None:
        """`files`: each file's checked header (`read_safetensors_header`); no tensor may be in two."""
        self._file_of = {name: path for path, infos in files.items() for name in infos}
        self._infos = {name: info for infos in files.values() for name, info in infos.items()}
        self._handles: dict[Path, Any] = {}

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """One tensor in `dtype` (None: as stored). It may be the map itself, so copy before writing to it."""
        path = self._file_of[name]
        try:
            tensor: torch.Tensor = self._open(path).get_tensor(name)
        except Exception as error:  # the library has one error class of its own and passes others through
            raise CorruptCheckpointError(f"{path}: tensor {shown(name)} cannot be read: {error}") from error
        return tensor if dtype is None else tensor.to(dtype)

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """As `read`, into a tensor of the same shape, from the map to its device and dtype in one step."""
        out.copy_(self.read(name))

    def _open(self, path: Path) -> Any:
        if path not in self._handles:
            import safetensors

            self._handles[path] = safetensors.safe_open(path, framework="pt", device="cpu")
        return self._handles[path]


def open_safetensors(folder: Path) -> SafetensorsSource:
    """The weights of a folder: `model.safetensors`, or the shards of `model.safetensors.index.json`.

    Raises:
        CorruptCheckpointError: neither is there, a shard is missing, or a shard does not hold what the index
            says.
        UnsupportedCheckpointError: a number format that torch has no type for.
    """
    index = folder / INDEX_FILE
    single = folder / SINGLE_FILE
    # The public loaders look for the single file first; a folder with both would otherwise load another model
    # here.
    if single.is_file() or not index.is_file():
        if not single.is_file():
            raise CorruptCheckpointError(
                f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE} is there, so it has no weights"
            )
        return SafetensorsSource({single: read_safetensors_header(single)})
    return _open_shards(folder, index)


def _open_shards(folder: Path, index: Path) -> SafetensorsSource:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptCheckpointError(
            f"{index}: no object 'weight_map' that says which shard holds which tensor"
        )
    wanted: dict[str, list[str]] = {}
    for name, file_name in weight_map.items():
        check_name(index, name)
        if not isinstance(file_name, str):
            raise CorruptCheckpointError(
                f"{index}: tensor {shown(name)} is in {shown(file_name)}, expected a file name"
            )
        check_file_name(index, file_name)
        wanted.setdefault(file_name, []).append(name)
    absent = [name for name in wanted if not (folder / name).is_file()]
    if absent:
        raise CorruptCheckpointError(
            f"{index}: {len(absent)} of {len(wanted)} shards are missing, the first is {shown(min(absent))}"
        )
    files = {}
    for file_name in sorted(wanted):
        path = folder / file_name
        header = read_safetensors_header(path)
        for name in wanted[file_name]:
            if name not in header:
                raise CorruptCheckpointError(
                    f"{path}: tensor {shown(name)} is missing, although {index.name} lists it here"
                )
        for name in header:
            if weight_map.get(name) != file_name:
                raise CorruptCheckpointError(
                    f"{path}: tensor {shown(name)} is here, although {index.name} does not say so"
                )
        files[path] = header
    return SafetensorsSource(files)
