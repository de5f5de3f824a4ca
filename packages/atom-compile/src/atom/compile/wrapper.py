"""What a decorated model gains: it is traced once, then its compiled bytecode is called directly."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator, Mapping

    from atom.compile.compiled_forward import CompiledForward
    from atom.config import Config

__all__ = ["TorchCompileWrapperWithCustomDispatcher"]

logger = logging.getLogger(__name__)


class TorchCompileWrapperWithCustomDispatcher:
    """Base class that `support_torch_compile` adds to a model.

    From level 2 on the first call traces and compiles; later calls go straight to the compiled bytecode.
    Dynamo's guards are not evaluated: what they would have checked about the sizes, number formats and
    layouts of the arguments is looked up in a table instead, and everything else a forward reads (its
    attributes, globals, flags of the process) is taken as it was.
    """

    do_not_compile: bool
    compilation_level: int
    use_custom_dispatcher: bool
    _compiled_forward: CompiledForward | None

    def _setup_compile(
        self, atom_config: Config, prefix: str, dynamic_dims: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.compilation_level = int(atom_config.compilation_config.level)
        self.do_not_compile = self.compilation_level < 2
        self.use_custom_dispatcher = not self.do_not_compile
        self._compiled_forward = None
        if not self.do_not_compile:
            # Dynamo and sympy take seconds to load: only a level that compiles pays for them.
            from atom.compile.compiled_forward import CompiledForward

            forward = type(self).forward  # type: ignore[attr-defined]
            self._compiled_forward = CompiledForward(forward, atom_config, prefix, dynamic_dims)
        # A `__call__` of the class's own (a recording unit's) stays outermost: it reaches the compiled
        # model where `nn.Module.__call__` looks for one.
        self._compiled_call_impl = None if self.do_not_compile else self._call_compiled

    @property
    def compiled_codes(self) -> list[types.CodeType]:
        """The bytecode of each trace, the general one first; empty before the first call."""
        return [] if self._compiled_forward is None else self._compiled_forward.codes

    @contextlib.contextmanager
    def dispatch_to_code(self, index: int) -> Iterator[Callable[..., Any]]:
        """In the body, this instance's `forward` is the compiled bytecode `index`, without any checks.

        Yields:
            That forward.

        Raises:
            IndexError: there are not so many traces yet.
        """
        if self._compiled_forward is None:
            raise IndexError("nothing is compiled at levels 0 and 1")
        forward = functools.partial(self._compiled_forward.traces[index].call, self)
        object.__setattr__(self, "forward", forward)
        try:
            yield forward
        finally:
            object.__delattr__(self, "forward")

    def _call_compiled(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._compiled_forward is None:
            return self.forward(*args, **kwargs)
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self._compiled_forward(self, args, kwargs)
        return self._compiled_forward(self, args, kwargs)
