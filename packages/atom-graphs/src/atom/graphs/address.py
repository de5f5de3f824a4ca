"""Tensors at a given address, which own nothing there."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from atom.graphs.structure import span

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class _Memory:
    """A stretch of device memory in the form `torch.as_tensor` accepts without copying."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 2,
        }


def bytes_at(address: int, nbytes: int, device: torch.device, owner: object) -> tuple[torch.Tensor, Any]:
    """A uint8 tensor `[nbytes]` over memory that somebody else owns, and the object that lives as long as it.

    `owner` is kept alive for as long as the tensor's storage is.
    """
    if device.type == "cuda":
        memory = _Memory(address, nbytes, owner)
        return torch.as_tensor(memory, device=device), memory
    if device.type != "cpu":
        raise ValueError(f"no tensors by address on device {device}: only on cpu and cuda")
    buffer: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    buffer.owner = owner
    return torch.frombuffer(buffer, dtype=torch.uint8), buffer


def ordinary() -> AbstractContextManager[Any]:
    """Where tensors made are ordinary ones also in inference mode: they may be written outside of it."""
    # torch.inference_mode costs five times as much, and recording calls this at every break.
    return torch._C._InferenceMode(False) if torch.is_inference_mode_enabled() else nullcontext()


def over(raw: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    """A tensor with the dtype, sizes and strides of `like`, `offset` bytes into the storage of `raw`.

    To be called inside of `ordinary()`, which is left to the caller because recording calls this often.
    """
    made = torch.empty(0, dtype=like.dtype, device=raw.device)
    made.set_(raw.untyped_storage(), offset // like.element_size(), like.size(), like.stride())
    return made


def tensor_at(address: int, like: torch.Tensor, *, owner: object) -> torch.Tensor:
    """A tensor with the dtype, sizes and strides of `like` at `address`."""
    with ordinary():
        raw, _ = bytes_at(address, span(like), like.device, owner)
        return over(raw, 0, like)


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """An ordinary tensor over the memory `tensor` has now, also when `tensor` is given other memory."""
    with ordinary():
        return over(tensor, int(tensor.storage_offset()) * tensor.element_size(), tensor)
