"""Weights into a model: every parameter filled exactly once, with the right shape, or one clear error."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import torch

from atom.models.checkpoint.names import shown
from atom.models.errors import WeightsError

if TYPE_CHECKING:
    from pathlib import Path

    from atom.models.checkpoint.checkpoint import TensorInfo

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Told `(done_bytes, total_bytes)` after every tensor; bytes as stored in the checkpoint."""

_NAMES_SHOWN = 4


class WeightReader(Protocol):
    """What loading needs of a checkpoint."""

    @property
    def path(self) -> Path: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...
    def read_into(self, name: str, out: torch.Tensor) -> None: ...


@contextlib.contextmanager
def progress_bar(description: str = "Loading weights") -> Iterator[Progress]:
    """A callback that draws a bar in bytes on standard error; draws nothing where that is not a terminal."""
    from tqdm import tqdm  # only wanted where somebody looks

    with tqdm(
        desc=description, unit="B", unit_scale=True, unit_divisor=1024, disable=None, leave=False
    ) as bar:

        def advance(done_bytes: int, total_bytes: int) -> None:
            bar.total = total_bytes
            bar.update(done_bytes - bar.n)

        yield advance


def load_weights(
    checkpoint: WeightReader,
    destinations: Mapping[str, torch.Tensor],
    *,
    parameters: Mapping[str, torch.Tensor],
    ignore: Collection[str] = (),
    progress: Progress | None = None,
    check_finite: bool = False,
) -> None:
    """Copy a checkpoint's tensors into a model, one at a time.

    Everything is checked against the headers before the first byte of weights is read.

    Args:
        checkpoint: where to read from.
        destinations: checkpoint name -> contiguous tensor of the same shape to fill. A fused parameter has
            one entry a part, each a slice of its rows: `"...q_proj.weight": qkv.weight[:q_rows]`.
        parameters: what must be filled, by the model's own names (`dict(model.named_parameters())`, with its
            persistent buffers if it has any). A tied head is one tensor under one name.
        ignore: checkpoint names that may be there and are not wanted (a copy of the embedding under a tied
            head).
        progress: told after every tensor.
        check_finite: log a warning naming each tensor that holds NaN or infinity.

    Raises:
        WeightsError: one line with what is missing, unexpected or misshapen, or which parameter stays
            unfilled.
    """
    _check_fit(checkpoint, destinations, ignore)
    _check_coverage(checkpoint.path, destinations, parameters)
    total_bytes = sum(checkpoint.tensors[name].nbytes for name in destinations)
    done_bytes = 0
    with torch.no_grad():
        # File order, so that a cold file is read from front to back.
        for name, info in checkpoint.tensors.items():
            if name not in destinations:
                continue
            destination = destinations[name]
            checkpoint.read_into(name, destination)
            if check_finite and not bool(torch.isfinite(destination).all()):
                logger.warning("%s: tensor %s holds values that are not finite", checkpoint.path, shown(name))
            done_bytes += info.nbytes
            if progress is not None:
                progress(done_bytes, total_bytes)


def _check_fit(
    checkpoint: WeightReader, destinations: Mapping[str, torch.Tensor], ignore: Collection[str]
) -> None:
    stored = checkpoint.tensors
    ignored = frozenset(ignore)
    missing = [shown(name) for name in destinations if name not in stored]
    unexpected = [shown(name) for name in stored if name not in destinations and name not in ignored]
    misshapen = [
        f"{shown(name)} is {list(stored[name].shape)} but the model needs {list(destination.shape)}"
        for name, destination in destinations.items()
        if name in stored and stored[name].shape != tuple(destination.shape)
    ]
    faults = [
        f"{kind} {_listed(names)}"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("wrong shape:", misshapen))
        if names
    ]
    if faults:
        raise WeightsError(f"{checkpoint.path}: the tensors do not fit the model: {'; '.join(faults)}")


def _check_coverage(
    path: Path, destinations: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor]
) -> None:
    """Every element of every parameter belongs to exactly one destination."""
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for name, destination in destinations.items():
        if not destination.is_contiguous():
            raise WeightsError(f"{path}: the destination of tensor {shown(name)} is not contiguous")
        begin = int(destination.storage_offset())
        spans.setdefault(_storage(destination), []).append((begin, begin + int(destination.numel()), name))
    for storage_spans in spans.values():
        storage_spans.sort()
        for (_, end, name), (begin, _, following) in itertools.pairwise(storage_spans):
            if begin < end:
                raise WeightsError(
                    f"{path}: tensors {shown(name)} and {shown(following)} fill the same weights"
                )
    unfilled = [
        shown(name)
        for name, parameter in parameters.items()
        if _filled(parameter, spans.get(_storage(parameter), ())) != parameter.numel()
    ]
    if unfilled:
        raise WeightsError(f"{path}: no tensor fills all of the model's {_listed(unfilled)}")


def _filled(parameter: torch.Tensor, spans: Collection[tuple[int, int, str]]) -> int:
    first = int(parameter.storage_offset())
    last = first + int(parameter.numel())
    return sum(max(0, min(end, last) - max(begin, first)) for begin, end, _ in spans)


def _storage(tensor: torch.Tensor) -> int:
    # Not data_ptr(): it is 0 on the meta device and for empty tensors.
    return int(tensor.untyped_storage()._cdata)


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
