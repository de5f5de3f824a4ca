"""Inductor through `torch._inductor.standalone_compile`, for torch 2.8 and newer."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

import torch

from atom.compile.errors import ArtifactError
from atom.compile.inductor_options import inductor_folder, options_for, settle_cpu_instructions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import fx

    from atom.compile.compiler_protocol import CompiledCallable
    from atom.config import Config

__all__ = ["InductorStandaloneAdaptor"]

logger = logging.getLogger(__name__)

_ARTIFACT = "unpacked"


class InductorStandaloneAdaptor:
    """Compiles a graph by itself and saves it in Inductor's "unpacked" format, with its C++ libraries."""

    name = "inductor_standalone"

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._save = False

    def initialize_cache(self, cache_dir: Path, disable_cache: bool = False, prefix: str = "") -> None:
        self._folder = cache_dir
        self._save = not disable_cache

    def compute_hash(self, vllm_config: Config) -> str:
        return self.name  # torch's version, sources and options are among a key's circumstances

    def compile(
        self,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        compiler_config: dict[str, Any],
        runtime_shape: int | None = None,
        key: str | None = None,
    ) -> tuple[CompiledCallable, Path | None]:
        from atom.compile.native_kernels import recorded_kernels

        folder = self._require_folder()
        settle_cpu_instructions(example_inputs)
        with inductor_folder(folder / "inductor"), recorded_kernels() as kernels:
            artifact: Any = torch._inductor.standalone_compile(
                graph,
                list(example_inputs),
                dynamic_shapes="from_tracing_context" if runtime_shape is None else "from_example_inputs",
                options={"config_patches": options_for(compiler_config, runtime_shape, example_inputs)},
            )
            if not self._save or key is None:
                return artifact, None
            saved = folder / key
            try:
                artifact.save(path=str(saved / _ARTIFACT), format="unpacked")
                kernels.copy_to(saved)
            except (RuntimeError, AssertionError, OSError) as error:
                logger.warning("a compiled piece cannot be saved and will be compiled again: %s", error)
                return artifact, None
        return artifact, saved

    def load(
        self,
        handle: Path,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        graph_index: int,
        runtime_shape: int | None = None,
    ) -> CompiledCallable:
        from atom.compile.native_kernels import bundled_kernels

        # The function of the same name hides the module from attribute access.
        module = importlib.import_module("torch._inductor.standalone_compile")
        with bundled_kernels(handle):
            loaded: CompiledCallable = module.CompiledArtifact.load(
                path=str(handle / _ARTIFACT), format="unpacked"
            )
        return loaded

    def _require_folder(self) -> Path:
        if self._folder is None:
            raise ArtifactError("initialize_cache comes before compile")
        return self._folder
