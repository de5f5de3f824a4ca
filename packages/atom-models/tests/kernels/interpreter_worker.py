"""A child process in which Triton interprets every kernel on the CPU.

Whether Triton interprets is settled once a process, when triton is first imported, so the tests' own process,
in which other tests may have imported it compiled, cannot be relied on. The child reads pickled calls from
standard input and answers with the result and the arguments as the call left them.
"""

import importlib
import io
import os
import struct
import sys
import traceback
from typing import Any, BinaryIO

import numpy as np
import torch


def read_message(stream: BinaryIO) -> Any:
    """The next object on `stream`; EOFError when the other side is gone."""
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    return torch.load(io.BytesIO(stream.read(struct.unpack("<Q", header)[0])), weights_only=False)


def write_message(stream: BinaryIO, message: Any) -> None:
    """Send one object."""
    buffer = io.BytesIO()
    torch.save(message, buffer)  # plain pickle cannot carry fp8
    payload = buffer.getvalue()
    stream.write(struct.pack("<Q", len(payload)))
    stream.write(payload)
    stream.flush()


def _teach_the_interpreter_bf16_products() -> None:
    """It keeps bf16 as 16-bit integers and multiplies matrices of those; widen them first."""
    from triton import language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    builtin = InterpreterBuilder.create_dot

    def widened(handle: TensorHandle) -> TensorHandle:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        bits = np.ascontiguousarray(handle.data).astype(np.uint32) << 16
        return TensorHandle(bits.view(np.float32), tl.float32)

    def create_dot(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *rest: Any) -> TensorHandle:
        return builtin(self, widened(a), widened(b), *rest)

    InterpreterBuilder.create_dot = create_dot


def main() -> None:
    _teach_the_interpreter_bf16_products()
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print must not garble the answers
    while True:
        try:
            module, function, args, kwargs = read_message(calls)
        except EOFError:
            return
        try:
            result = getattr(importlib.import_module(module), function)(*args, **kwargs)
            write_message(answers, ("done", result, args, kwargs))
        except Exception as error:
            write_message(answers, ("failed", error, traceback.format_exc(), None))


if __name__ == "__main__":
    main()
