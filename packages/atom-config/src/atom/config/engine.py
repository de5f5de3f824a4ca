"""The whole configuration of one engine, and the checks that need more than one field."""

from __future__ import annotations

from dataclasses import dataclass, field

from atom.config.capture_sizes import checked_sizes, ladder_within, prefill_ladder
from atom.config.compilation import CompilationConfig
from atom.config.cudagraph_mode import CUDAGraphMode
from atom.config.errors import ConfigError
from atom.config.kinds import Integer, Kind, Switch, Word
from atom.config.kv_cache import KVCacheConfig
from atom.config.level import CompilationLevel
from atom.config.model import ModelConfig
from atom.config.parallel import ParallelConfig
from atom.config.setting import IN_KEY, about, outside_key
from atom.config.settings import Nested, Settings
from atom.config.speculative import SpeculativeConfig

FROM_COMPUTED = "computed from other fields"
SCHEDULING = "decides what a step holds, not how it is computed"


@dataclass(frozen=True)
class Config(Settings):
    """Everything an engine is told before it starts.

    Frozen: what is learned at run time has values of its own. The given `CompilationConfig` is copied, and
    level and mode in the copy are the effective ones.
    """

    model: str = field(
        metadata=about("Path of a checkpoint: a Hugging Face folder or a GGUF file.", Kind(), key=IN_KEY)
    )
    model_config: ModelConfig = field(
        default_factory=ModelConfig,
        kw_only=True,
        metadata=about("How the checkpoint is loaded.", Nested(of=ModelConfig), key=IN_KEY),
    )
    kv_cache_config: KVCacheConfig = field(
        default_factory=KVCacheConfig,
        kw_only=True,
        metadata=about("The paged cache.", Nested(of=KVCacheConfig), key=IN_KEY),
    )
    parallel_config: ParallelConfig = field(
        default_factory=ParallelConfig,
        kw_only=True,
        metadata=about("Processes that share the work.", Nested(of=ParallelConfig), key=IN_KEY),
    )
    speculative_config: SpeculativeConfig | None = field(
        default=None,
        kw_only=True,
        metadata=about(
            "Drafting ahead. none: one token a step.", Nested(optional=True, of=SpeculativeConfig), key=IN_KEY
        ),
    )
    compilation_config: CompilationConfig = field(
        default_factory=CompilationConfig,
        kw_only=True,
        metadata=about("Compilation and graphs.", Nested(of=CompilationConfig), key=IN_KEY),
    )
    max_num_seqs: int = field(
        default=512,
        kw_only=True,
        metadata=about("Sequences a step may hold.", Integer(), key=IN_KEY),
    )
    max_num_batched_tokens: int = field(
        default=8192,
        kw_only=True,
        metadata=about("Tokens (rows) a step may hold.", Integer(), key=IN_KEY),
    )
    enable_chunked_prefill: bool = field(
        default=True,
        kw_only=True,
        metadata=about(
            "Spread a long prompt over several steps, beside decoding sequences.",
            Switch(),
            key=outside_key(SCHEDULING),
        ),
    )
    enforce_eager: bool = field(
        default=False,
        kw_only=True,
        metadata=about("No compilation and no graphs, whatever else is set.", Switch(), key=IN_KEY),
    )
    enable_tbo: str = field(
        default="none",
        kw_only=True,
        metadata=about(
            "Two-batch overlap: a step as two microbatches, in prefill or in prefill and decode.",
            Word(words=("none", "prefill", "all")),
            key=IN_KEY,
        ),
    )
    capture_sizes: list[int] | None = field(
        default=None,
        init=False,
        metadata=about(
            "Batch sizes that are recorded, ascending; none without a graph mode.",
            Kind(),
            key=outside_key(FROM_COMPUTED),
        ),
    )
    prefill_capture_sizes: list[int] | None = field(
        default=None,
        init=False,
        metadata=about(
            "Prefill buckets in rows, ascending, for models that ask for them; none without a graph mode.",
            Kind(),
            key=outside_key(FROM_COMPUTED),
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        compilation = self.compilation_config.replace()
        object.__setattr__(self, "compilation_config", compilation)
        self._check_limits()
        compilation.settle(enforce_eager=self.enforce_eager)
        if compilation.level == CompilationLevel.PIECEWISE:
            compilation.set_splitting_ops_for_v1()
        self._set_cudagraph_sizes()
        if compilation.level == CompilationLevel.PIECEWISE:
            compilation.init_with_cudagraph_sizes(
                self._decode_ladder(),
                rows_per_sequence=self.max_query_len,
                max_rows=self.max_num_batched_tokens,
            )

    @property
    def mtp_k(self) -> int:
        """Tokens drafted for each request and step; 0 without speculative decoding."""
        return 0 if self.speculative_config is None else self.speculative_config.num_speculative_tokens

    @property
    def max_query_len(self) -> int:
        """Rows a sequence has in a decode step: the token it decodes and those it verifies."""
        return self.mtp_k + 1

    @property
    def max_decode_seqs(self) -> int:
        """Sequences of the largest decode step, within `max_num_seqs` and `max_num_batched_tokens`."""
        return min(self.max_num_seqs, self.max_num_batched_tokens // self.max_query_len)

    def _check_limits(self) -> None:
        if self.max_num_batched_tokens < self.max_query_len:
            raise ConfigError(
                "Config.max_num_batched_tokens",
                self.max_num_batched_tokens,
                f"at least {self.max_query_len}, the rows of one sequence with {self.mtp_k} drafted tokens",
            )
        longest = self.model_config.max_model_len
        if not self.enable_chunked_prefill and longest is not None and longest > self.max_num_batched_tokens:
            raise ConfigError(
                "Config.max_num_batched_tokens",
                self.max_num_batched_tokens,
                f"at least {longest} (max_model_len) without chunked prefill",
            )

    def _set_cudagraph_sizes(self) -> None:
        """Computes `capture_sizes` and `prefill_capture_sizes` and checks the sizes that were listed.

        Raises:
            ConfigError: a listed size is above what a step can hold.
        """
        decode, prefill = self._decode_ladder(), self._prefill_ladder()
        recorded = self.compilation_config.cudagraph_mode is not CUDAGraphMode.NONE
        object.__setattr__(self, "capture_sizes", decode if recorded else None)
        object.__setattr__(self, "prefill_capture_sizes", prefill if recorded else None)

    def _decode_ladder(self) -> list[int]:
        limit = self.max_decode_seqs
        explicit = self.compilation_config.explicit_capture_sizes()
        if explicit is None:
            return ladder_within(self.compilation_config.cuda_graph_sizes[0], limit)
        label, sizes = explicit
        tight = "max_num_seqs" if limit == self.max_num_seqs else "max_num_batched_tokens"
        return checked_sizes(label, sizes, limit=limit, limit_name=tight)

    def _prefill_ladder(self) -> list[int]:
        asked = self.compilation_config.cudagraph_prefill_capture_sizes
        limit = self.max_num_batched_tokens
        if asked is None:
            return prefill_ladder(limit)
        label = "CompilationConfig.cudagraph_prefill_capture_sizes"
        return checked_sizes(label, asked, limit=limit, limit_name="max_num_batched_tokens")
