"""What the compiler manager asks of a compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    from torch import fx

    from atom.config import Config

__all__ = ["CompiledCallable", "CompilerInterface"]

CompiledCallable = Callable[..., Sequence[Any]]
"""Takes the inputs of a graph one by one, gives its outputs as a sequence."""


@runtime_checkable
class CompilerInterface(Protocol):
    """A compiler of single graphs, whose results can be written to a folder and read back.

    A compiler need not care about other processes, damage or full disks: the folders it writes to and reads
    from are private to this process, and the manager publishes and verifies what is shared.
    """

    name: str
    """Part of every cache key."""

    def initialize_cache(self, cache_dir: Path, disable_cache: bool = False, prefix: str = "") -> None:
        """Say where artifacts go: `cache_dir/<key>`, private to this process.

        Args:
            disable_cache: save nothing; `compile` then returns no handle.
            prefix: name of the model part that is compiled.
        """

    def compute_hash(self, vllm_config: Config) -> str:
        """A digest of the compiler's own state, for cache invalidation."""

    def compile(
        self,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        compiler_config: dict[str, Any],
        runtime_shape: int | None = None,
        key: str | None = None,
    ) -> tuple[CompiledCallable, Path | None]:
        """Compile `graph`, which returns a tuple.

        Args:
            example_inputs: fake tensors and symbolic integers of the trace in progress for a general shape;
                tensors and integers as they are for a specific one.
            compiler_config: options by the compiler's own names.
            runtime_shape: None for a general shape, else the size to specialise for.
            key: name of the artifact, unique to what is compiled.

        Returns:
            The callable, and the folder it was saved to; no folder when it was not saved.
        """

    def load(
        self,
        handle: Path,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        graph_index: int,
        runtime_shape: int | None = None,
    ) -> CompiledCallable:
        """The callable that an earlier process saved to the folder `handle`.

        Raises:
            Exception: of any kind; the manager logs it and compiles again.
        """
