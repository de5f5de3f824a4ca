"""Refuses forwards that assign an `nn.Module` buffer.

Dynamo replays such an assignment after the graph, in bytecode: a recorded graph would never make it again,
and the model would silently go on with the first step's value.
"""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING

from atom.compile.errors import BufferUpdateError

if TYPE_CHECKING:
    from types import CodeType

    from torch import nn

__all__ = ["check_no_buffer_update"]


def check_no_buffer_update(code: CodeType, module: nn.Module) -> None:
    """Look for the `update` of a buffer dictionary in the bytecode that Dynamo made of a forward.

    Raises:
        BufferUpdateError: names the buffers and the class that owns them, as far as the bytecode tells.
    """
    if "update" not in code.co_names:
        return
    updated = _updated_keys(code)
    owners = {
        type(owner).__qualname__
        for owner in module.modules()
        if any(name in owner._buffers for name in updated)
    }
    where = ", ".join(sorted(owners)) or type(module).__qualname__
    what = f"buffer {', '.join(map(repr, updated))}" if updated and owners else "its state"
    raise BufferUpdateError(
        f"{where}.forward assigns {what}, which a recorded graph would not do again: write into the buffer "
        "in place (copy_, add_), or keep the value outside of the forward; level 0 (NO_COMPILATION) runs it"
    )


def _updated_keys(code: CodeType) -> list[str]:
    """The keys of the dictionaries that are handed to `update`."""
    keys: dict[str, None] = {}
    collecting = False
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval == "update":
            collecting = True
        elif collecting and instruction.opname in ("BUILD_MAP", "BUILD_CONST_KEY_MAP", "CALL"):
            collecting = False
        elif collecting and instruction.opname == "LOAD_CONST":
            values = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            keys.update(dict.fromkeys(value for value in values if isinstance(value, str)))
    return list(keys)
