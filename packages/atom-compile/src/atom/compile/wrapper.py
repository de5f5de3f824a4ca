"""What a decorated model gains: it is traced once, then its compiled bytecode is called directly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from atom.config import Config

__all__ = ["TorchCompileWrapperWithCustomDispatcher"]


class TorchCompileWrapperWithCustomDispatcher:
    """Base class that `support_torch_compile` adds to a model."""

    do_not_compile: bool
    compilation_level: int

    def _setup_compile(
        self, atom_config: Config, prefix: str, dynamic_dims: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.compilation_level = int(atom_config.compilation_config.level)
        self.do_not_compile = self.compilation_level < 2
        self._dynamic_dims = dynamic_dims
        self._compiled_call: Callable[..., Any] | None = None
        # A `__call__` of the class's own (a recording unit's) stays outermost: it reaches the compiled
        # model where `nn.Module.__call__` looks for one.
        self._compiled_call_impl = None if self.do_not_compile else self._call_compiled

    def _call_compiled(self, *args: Any, **kwargs: Any) -> Any:
        if self._compiled_call is None:
            forward: Callable[..., Any] = self.forward  # type: ignore[attr-defined]
            self._compiled_call = torch.compile(forward, backend="inductor", fullgraph=True, dynamic=True)
        return self._compiled_call(*args, **kwargs)
