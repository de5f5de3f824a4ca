"""The `torch.compile` backend of levels 2 and 3: the order of a compilation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from atom.compile.artifact_store import ArtifactStore
from atom.compile.cache_key import run_digest, traced_files, traced_source_digest
from atom.compile.copy_inputs import copying_inputs
from atom.compile.counter import compilation_counter
from atom.compile.debug_files import DebugDump, write_computation_graph
from atom.compile.interpreter import PiecewiseCompileInterpreter, fake_inputs, mode_of
from atom.compile.manager import CompilerManager
from atom.compile.monitor import compile_monitor
from atom.compile.split import SplitItem, check_eager_regions, eager_region_in, mark_spliting_op, split_graph
from atom.compile.toolchain import require_cpp_compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import CodeType

    from torch import fx

    from atom.compile.compiler_protocol import CompilerInterface
    from atom.config import Config

__all__ = [
    "CompilerManager",
    "PiecewiseCompileInterpreter",
    "SplitItem",
    "VllmBackend",
    "mark_spliting_op",
    "split_graph",
]


class VllmBackend:
    """Splits what Dynamo traced, has each piece compiled once, and stitches them together again.

    At level 2 there are no splitting ops, so the whole model is one piece; everything else is the same.
    """

    def __init__(
        self, vllm_config: Config, prefix: str = "", *, compiler: CompilerInterface | None = None
    ) -> None:
        """
        Args:
            prefix: names the cache folder of this model part.
            compiler: by default the one that `make_compiler` chooses.
        """
        self.vllm_config = vllm_config
        self.compilation_config = vllm_config.compilation_config
        self.prefix = prefix or "model"
        self.compiler_manager = CompilerManager(self.compilation_config, compiler)  # type: ignore[arg-type]
        self.local_cache_dir: Path | None = None
        self.split_gm: fx.GraphModule | None = None
        self.piecewise_graphs: list[SplitItem] = []
        self.region_inside: str | None = None
        """An op implemented by an eager region that ended up in a compiled piece (level 2 only)."""
        self._debug = DebugDump(vllm_config, self.prefix)
        self._piecewise = int(self.compilation_config.level) >= 3
        self._calls = 0
        self._pieces_so_far = 0

    def __call__(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile `graph`; called by Dynamo.

        Raises:
            MissingToolchainError: code for the CPU cannot be built here.
            SplitError: a splitting op's name is malformed, or an eager region is not a splitting op.
        """
        config = self.compilation_config
        piecewise = self._piecewise
        with compile_monitor.step("backend"):
            if config.use_inductor:
                require_cpp_compiler(example_inputs, int(config.level))
            self._debug.traced(self._calls, graph)
            self._open_cache(graph, example_inputs)
            splitting_ops = (config.splitting_ops or []) if piecewise else []
            self.split_gm, self.piecewise_graphs = split_graph(graph, splitting_ops, marked=piecewise)
            if piecewise:
                check_eager_regions(self.piecewise_graphs)
            else:
                self.region_inside = eager_region_in(graph.graph)
            compilation_counter.num_graphs_split += 1
            self._debug.split(self._calls, self.split_gm, self.piecewise_graphs)
            if self.local_cache_dir is not None:
                write_computation_graph(self.local_cache_dir, self.split_gm)
            inputs = fake_inputs(graph)
            with mode_of(inputs):
                self._compile_pieces(inputs)
            self._calls += 1
        call: Callable[..., Any] = self.split_gm.forward
        records = config.cudagraph_mode is not None and config.cudagraph_mode.name != "NONE"
        if piecewise and config.cudagraph_copy_inputs and records:
            return copying_inputs(call, inputs, max_rows=self.vllm_config.max_num_batched_tokens)
        return call

    def dump_code(self, original: CodeType, compiled: CodeType) -> None:
        """Write the bytecode of the last trace to `debug_dump_path`, if there is one."""
        self._debug.code(self._calls - 1, original, compiled)

    def _open_cache(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        self.compiler_manager.new_graph()
        if self._calls:
            return  # another trace of the same model: same folder
        config = self.vllm_config
        root = self.compilation_config.cache_root()
        devices = [value.device for value in example_inputs if isinstance(value, torch.Tensor)]
        run = run_digest(
            config.compute_hash(),
            traced_source_digest(traced_files(graph.graph)),
            self.compiler_manager.compute_hash(config),
            self.compiler_manager.surroundings(devices),
        )
        folder = root / run / f"rank_{config.parallel_config.rank}" / self.prefix
        if self.compilation_config.disable_compile_cache:
            self.compiler_manager.initialize_cache(folder, None, prefix=self.prefix)
        else:
            self.local_cache_dir = folder
            self.compiler_manager.initialize_cache(folder, ArtifactStore(root), prefix=self.prefix)

    def _compile_pieces(self, inputs: Sequence[Any]) -> None:
        if self.split_gm is None:
            return
        PiecewiseCompileInterpreter(
            self.split_gm,
            self.piecewise_graphs,
            manager=self.compiler_manager,
            compile_sizes=self.compilation_config.compile_rows() if self._piecewise else (),
            first_index=self._pieces_so_far,
        ).run(*inputs)
        self._pieces_so_far += sum(item.is_compiled for item in self.piecewise_graphs)
        self.compiler_manager.save_to_file()
