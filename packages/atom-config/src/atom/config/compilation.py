"""How a model is compiled and which graphs are recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from atom.config.capture_sizes import CAPTURE_SIZES_NAME, checked_sizes, default_ladder
from atom.config.cudagraph_mode import CUDAGraphMode
from atom.config.errors import ConfigError
from atom.config.kinds import CompileSizes, Level, Mode, Options, Sizes, Switch, Text, TextList
from atom.config.level import CompilationLevel
from atom.config.setting import IN_KEY, about, outside_key
from atom.config.settings import Derivable

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_SPLITTING_OPS = ("aiter.unified_attention_with_output", "aiter.mla_attention")
"""The attention ops: they need metadata that changes with each step."""

DEFAULT_CACHE_ROOT = "~/.cache/atom/torch_compile_cache"

RECORDED_OUTSIDE = (
    "graphs are recorded around compiled pieces; sizes compiled for enter through compile_sizes"
)


@dataclass(kw_only=True)
class CompilationConfig(Derivable):
    """Compilation level, graph mode and what goes with them.

    `Config` works on a copy, so one instance may serve several models. Fields may be assigned; each value
    is checked on the way in.
    """

    level: int = field(
        default=CompilationLevel.NO_COMPILATION,
        metadata=about(
            "Compilation level, by number or name: 0 eager, 1 traced only, 2 one graph, 3 piecewise.",
            Level(),
            key=IN_KEY,
        ),
    )
    use_cudagraph: bool = field(
        default=True,
        metadata=about("Whether graphs may be recorded at all; false is mode NONE.", Switch(), key=IN_KEY),
    )
    cudagraph_capture_sizes: list[int] | None = field(
        default=None,
        metadata=about(
            "Batch sizes to record, in sequences, instead of the ladder of cuda_graph_sizes.",
            Sizes(optional=True),
            key=outside_key(RECORDED_OUTSIDE),
        ),
    )
    cuda_graph_sizes: list[int] = field(
        default_factory=lambda: [512],
        metadata=about(
            "One value: end of the ladder 1 to 8, 16, 32, ...; max_num_seqs cuts it and is always its last "
            "bucket. Several values: the batch sizes themselves.",
            Sizes(),
            key=outside_key(RECORDED_OUTSIDE),
        ),
    )
    cudagraph_prefill_capture_sizes: list[int] | None = field(
        default=None,
        metadata=about(
            "Prefill buckets to record, in rows, for models that ask for them. none: four an octave from 16 "
            "to max_num_batched_tokens, at most 1024.",
            Sizes(optional=True),
            key=outside_key(RECORDED_OUTSIDE),
        ),
    )
    cudagraph_mode: CUDAGraphMode | None = field(
        default=None,
        metadata=about(
            "Graph mode by name. Left out: TR_HYBRID at level 3, NONE below.", Mode(optional=True), key=IN_KEY
        ),
    )
    splitting_ops: list[str] | None = field(
        default=None,
        metadata=about(
            "Ops at which level 3 cuts the model, as namespace.op. none: the attention ops.",
            TextList(optional=True),
            key=IN_KEY,
        ),
    )
    cudagraph_copy_inputs: bool = field(
        default=False,
        metadata=about(
            "Copy inputs into static buffers before each compiled call, at level 3 with a graph mode.",
            Switch(),
            key=IN_KEY,
        ),
    )
    use_inductor: bool = field(
        default=True,
        metadata=about(
            "Generate code with Inductor; false runs traced graphs as they are.", Switch(), key=IN_KEY
        ),
    )
    compile_sizes: list[int | str] | None = field(
        default=None,
        metadata=about(
            f"Row counts to compile for specially; {CAPTURE_SIZES_NAME} stands for the capture ladder.",
            CompileSizes(optional=True),
            key=IN_KEY,
        ),
    )
    inductor_compile_config: dict[str, Any] = field(
        default_factory=dict,
        metadata=about("Further Inductor options, by Inductor's own names.", Options(), key=IN_KEY),
    )
    debug_dump_path: str = field(
        default="",
        metadata=about(
            "Directory for traced graphs and decompiled code, one folder a rank. Empty: nothing is written.",
            Text(),
            key=outside_key("files are written beside the result"),
        ),
    )
    cache_dir: str = field(
        default="",
        metadata=about(
            f"Directory of the compile cache. Empty: {DEFAULT_CACHE_ROOT}.",
            Text(),
            key=outside_key("where an entry lies does not change it"),
        ),
    )
    disable_compile_cache: bool = field(
        default=False,
        metadata=about(
            "Compile afresh: neither read nor write the compile cache.",
            Switch(),
            key=outside_key("with it there is no entry"),
        ),
    )

    def set_splitting_ops_for_v1(self) -> None:
        """Makes the attention ops the splitting ops where none were given; an empty list stays empty."""
        if self.splitting_ops is None:
            self._derive("splitting_ops", list(DEFAULT_SPLITTING_OPS))

    def init_with_cudagraph_sizes(
        self,
        capture_sizes: Sequence[int] | None = None,
        *,
        rows_per_sequence: int = 1,
        max_rows: int | None = None,
    ) -> None:
        """Settles `compile_sizes`: ascending row counts, no words; empty where none were given.

        Args:
            capture_sizes: the ladder that "cudagraph_capture_sizes" stands for, in sequences; by default the
                one of this configuration alone.
            rows_per_sequence: rows that a sequence has in a decode step.
            max_rows: rows of the largest step.

        Raises:
            ConfigError: a row count is above `max_rows`.
        """
        ladder = self.asked_capture_sizes() if capture_sizes is None else capture_sizes
        rows: set[int] = set()
        for size in self.compile_sizes or ():
            rows.update([bs * rows_per_sequence for bs in ladder] if isinstance(size, str) else [size])
        if max_rows is not None and rows and max(rows) > max_rows:
            raise ConfigError(
                "CompilationConfig.compile_sizes",
                self.compile_sizes,
                f"rows from 1 to {max_rows} (max_num_batched_tokens)",
            )
        self._derive("compile_sizes", sorted(rows))

    def asked_capture_sizes(self) -> list[int]:
        """The batch sizes this configuration asks for by itself, before any limit, ascending."""
        explicit = self.explicit_capture_sizes()
        return default_ladder(self.cuda_graph_sizes[0]) if explicit is None else explicit[1]

    def explicit_capture_sizes(self) -> tuple[str, list[int]] | None:
        """Field name and sizes where the batch sizes were listed one by one, else None."""
        if self.cudagraph_capture_sizes is not None:
            name = "cudagraph_capture_sizes"
        elif len(self.cuda_graph_sizes) > 1:
            name = "cuda_graph_sizes"
        else:
            return None
        label = f"CompilationConfig.{name}"
        return label, checked_sizes(label, getattr(self, name))  # again: a list can change in place

    def effective_cudagraph_mode(self) -> CUDAGraphMode:
        """The mode that these fields mean: NONE without `use_cudagraph`, TR_HYBRID by default at level 3."""
        if not self.use_cudagraph:
            return CUDAGraphMode.NONE
        if self.cudagraph_mode is not None:
            return self.cudagraph_mode
        piecewise = self.level == CompilationLevel.PIECEWISE
        return CUDAGraphMode.TR_HYBRID if piecewise else CUDAGraphMode.NONE

    def settle(self, *, enforce_eager: bool) -> None:
        """Gives level and mode their effective values; `enforce_eager` overrides both."""
        mode = CUDAGraphMode.NONE if enforce_eager else self.effective_cudagraph_mode()
        if enforce_eager:
            self._derive("level", CompilationLevel.NO_COMPILATION)
        self._derive("cudagraph_mode", mode)

    def cache_root(self) -> Path:
        """The directory below which `<hash>/rank_<i>/<prefix>` lie."""
        return Path(self.cache_dir or DEFAULT_CACHE_ROOT).expanduser()

    def compile_rows(self) -> list[int]:
        """`compile_sizes` once settled by `init_with_cudagraph_sizes`, in rows."""
        return [cast("int", size) for size in self.compile_sizes or ()]
