"""Load or compile: one artifact for all pieces that are the same."""

from __future__ import annotations

import logging
import shutil
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from atom.compile.atomic_files import unique_name
from atom.compile.cache_index import INDEX_NAME, IndexKey, read_index, update_index
from atom.compile.cache_key import circumstances, digest_of, piece_digest
from atom.compile.canonical import CanonicalGraph, UncacheableError, canonicalize, remember_bounds
from atom.compile.compiler_interface import make_compiler
from atom.compile.counter import compilation_counter
from atom.compile.errors import ArtifactError
from atom.compile.graph_outputs import copied_graph
from atom.compile.size_guards import Condition, conditions_on, exactly, holds
from atom.compile.work_folder import work_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from torch import fx

    from atom.compile.artifact_store import ArtifactStore, Manifest
    from atom.compile.compiler_protocol import CompiledCallable, CompilerInterface
    from atom.config import CompilationConfig, Config

__all__ = ["CompiledPiece", "CompilerManager"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class CompiledPiece:
    """A compiled callable and the sizes it is valid for."""

    call: CompiledCallable
    conditions: tuple[Condition, ...] = ()
    """In the canonical names of the piece's symbols."""

    def serves(self, sizes: dict[str, int]) -> bool:
        return all(holds(condition, sizes) for condition in self.conditions)


@dataclass(frozen=True)
class _Request:
    """One piece to be had."""

    graph: fx.GraphModule
    inputs: Sequence[Any]
    options: dict[str, Any]
    graph_index: int
    runtime_shape: int | None
    canonical: CanonicalGraph | None
    digest: str | None
    """None: nothing identifies this graph in another process."""

    @property
    def sizes(self) -> dict[str, int]:
        return {} if self.canonical is None else self.canonical.sizes


# Pieces in use anywhere in this process, by digest: a second model of the same kind compiles nothing.
_in_use: weakref.WeakValueDictionary[str, CompiledPiece] = weakref.WeakValueDictionary()

# By shape environment: how many guards tracing left; those after them come from compiling pieces.
_guards_traced: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


@dataclass
class CompilerManager:
    """Serves pieces from this process, from the cache on disk, or from the compiler, in this order.

    The index maps `(runtime_shape, graph_index, backend_name)` to the digest of an artifact, which several
    keys may share. It is for people and tools: an artifact is found by the digest of the piece at hand, so
    an index that is stale, damaged or somebody else's cannot lead to a wrong one.
    """

    compilation_config: CompilationConfig
    compiler: CompilerInterface = None  # type: ignore[assignment]
    store: ArtifactStore | None = None
    """None: nothing is read from or written to disk."""
    cache: dict[IndexKey, str] = field(default_factory=dict)
    cache_file_path: Path | None = None
    pieces: dict[IndexKey, CompiledPiece] = field(default_factory=dict)
    """What this manager handed out; keeps it alive for other models of the process."""
    _surroundings: dict[frozenset[torch.device], str] = field(default_factory=dict)
    size_conditions: list[tuple[Condition, dict[str, Any]]] = field(default_factory=list)
    """Of the general pieces handed out: a condition, and the symbol behind each name in it."""

    def __post_init__(self) -> None:
        if self.compiler is None:
            self.compiler = make_compiler(self.compilation_config)

    def compute_hash(self, vllm_config: Config) -> str:
        """A digest of the compiler's own state."""
        return self.compiler.compute_hash(vllm_config)

    def initialize_cache(
        self, cache_dir: Path, store: ArtifactStore | None = None, *, prefix: str = ""
    ) -> None:
        """Use the index in `cache_dir` and the artifacts in `store`; without a store, no disk at all."""
        self.store = store
        self.compiler.initialize_cache(work_folder(), disable_cache=store is None, prefix=prefix)
        if store is not None:
            self.cache_file_path = cache_dir / INDEX_NAME
            self.cache = read_index(self.cache_file_path)
            store.sweep_staging()

    def surroundings(self, devices: Iterable[torch.device]) -> str:
        """The digest of the circumstances, taken once for all pieces of a graph (see `new_graph`)."""
        key = frozenset(devices)
        if key not in self._surroundings:
            self._surroundings[key] = digest_of(circumstances(key))
        return self._surroundings[key]

    def new_graph(self) -> None:
        """Look at the circumstances again: settings may have changed since the last graph was compiled."""
        self._surroundings.clear()
        shape_env = _current_shape_env()
        if shape_env is not None:
            remember_bounds(shape_env)
            _guards_traced.setdefault(shape_env, len(shape_env.guards))

    def save_to_file(self) -> None:
        """Write the index; done when it cannot be."""
        if self.store is None or self.cache_file_path is None or not self.cache:
            return
        try:
            if read_index(self.cache_file_path) != self.cache:
                update_index(self.cache_file_path, self.cache)
        except OSError as error:
            logger.warning("the compile cache index cannot be written: %s", error)

    def load(
        self,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        graph_index: int = 0,
        runtime_shape: int | None = None,
        *,
        options: dict[str, Any] | None = None,
    ) -> CompiledPiece | None:
        """The piece from this process or from disk; None when it has to be compiled."""
        return self._load(self._request(graph, example_inputs, graph_index, runtime_shape, options))

    def compile(
        self,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        graph_index: int = 0,
        runtime_shape: int | None = None,
        *,
        options: dict[str, Any] | None = None,
    ) -> CompiledPiece:
        """Load the piece, or compile it and add it to the cache.

        Args:
            graph: returns a tuple.
            example_inputs: see `CompilerInterface.compile`.
            options: of the compiler; by default `inductor_compile_config`.

        Raises:
            Exception: what the compiler raises; trouble with the cache is logged instead.
        """
        request = self._request(graph, example_inputs, graph_index, runtime_shape, options)
        compilation_counter.num_pieces += 1
        was_there = self._is_stored(request)  # asked first: others may be publishing it just now
        piece = self._load(request) or self._compile_or_wait(request, unusable=was_there)
        self._remember(request, piece)
        return piece

    def _is_stored(self, request: _Request) -> bool:
        return self.store is not None and request.digest is not None and self.store.contains(request.digest)

    def _compile_or_wait(self, request: _Request, *, unusable: bool) -> CompiledPiece:
        """Compile, unless another process is just compiling the same: then wait and load."""
        if self.store is None or request.digest is None:
            return self._compile(request)
        with self.store.lock(request.digest):
            loaded = None if unusable else self._load(request)
            return loaded or self._compile(request)

    def _request(
        self,
        graph: fx.GraphModule,
        inputs: Sequence[Any],
        graph_index: int,
        runtime_shape: int | None,
        options: dict[str, Any] | None,
    ) -> _Request:
        options = dict(self.compilation_config.inductor_compile_config if options is None else options)
        try:
            canonical = canonicalize(graph, inputs)
        except UncacheableError as reason:
            logger.info("piece %d is compiled afresh in each process: %s", graph_index, reason)
            return _Request(graph, inputs, options, graph_index, runtime_shape, None, None)
        devices = [value.device for value in inputs if isinstance(value, torch.Tensor)]
        digest = piece_digest(
            canonical.text,
            compiler=self.compiler.name,
            runtime_shape=runtime_shape,
            options=options,
            surroundings=self.surroundings(devices),
        )
        return _Request(graph, inputs, options, graph_index, runtime_shape, canonical, digest)

    def _load(self, request: _Request) -> CompiledPiece | None:
        if request.digest is None:
            return None
        known = _in_use.get(request.digest)
        if known is not None and known.serves(request.sizes):
            compilation_counter.num_process_hits += 1
            return known
        if self.store is None or not self.store.contains(request.digest):
            return None
        return self._load_artifact(request, request.digest, self.store)

    def _load_artifact(self, request: _Request, digest: str, store: ArtifactStore) -> CompiledPiece | None:
        folder = work_folder() / f"{digest}-{unique_name()}"
        try:
            manifest = store.fetch(digest, folder)
        except (ArtifactError, OSError) as error:
            return self._reject(digest, error, store)
        if not _serves(manifest, request.sizes):
            compilation_counter.num_artifacts_rejected += 1
            logger.info("artifact %s is not valid for the sizes %s; recompiling", digest, request.sizes)
            return None
        try:
            call = self.compiler.load(
                folder,
                copied_graph(request.graph),
                request.inputs,
                request.graph_index,
                request.runtime_shape,
            )
        except Exception as error:  # whatever a damaged or foreign artifact makes the compiler say
            return self._reject(digest, error, store)
        compilation_counter.num_cache_hits += 1
        return CompiledPiece(call, tuple(manifest.conditions))

    def _reject(self, digest: str, error: Exception, store: ArtifactStore) -> CompiledPiece | None:
        compilation_counter.num_artifacts_rejected += 1
        logger.warning("artifact %s cannot be used and is compiled again: %s", digest, error)
        store.discard(digest)
        return None

    def _compile(self, request: _Request) -> CompiledPiece:
        started = time.perf_counter()
        guards = _GuardsAdded(request.canonical)
        call, saved = self.compiler.compile(
            copied_graph(request.graph),
            request.inputs,
            request.options,
            request.runtime_shape,
            request.digest,
        )
        compilation_counter.num_backend_compilations += 1
        piece = CompiledPiece(call, tuple(guards.conditions()))
        logger.info(
            "compiled piece %d for %s in %.2f s",
            request.graph_index,
            "any size" if request.runtime_shape is None else f"size {request.runtime_shape}",
            time.perf_counter() - started,
        )
        if saved is not None and self.store is not None and request.digest is not None:
            self._publish(request.digest, saved, piece, self.store)
        return piece

    def _publish(self, digest: str, saved: Path, piece: CompiledPiece, store: ArtifactStore) -> None:
        try:
            made = store.publish(
                digest, saved, compiler=self.compiler.name, conditions=list(piece.conditions)
            )
        except OSError as error:
            logger.warning("a compiled piece cannot be kept in %s: %s", store.root, error)
        else:
            compilation_counter.num_artifacts_published += made
        finally:
            shutil.rmtree(saved, ignore_errors=True)

    def _remember(self, request: _Request, piece: CompiledPiece) -> None:
        key = (request.runtime_shape, request.graph_index, self.compiler.name)
        self.pieces[key] = piece
        if request.runtime_shape is None and request.canonical is not None:
            symbols = {name: symbol for symbol, name in request.canonical.names.items()}
            self.size_conditions += [(condition, symbols) for condition in piece.conditions]
        if request.digest is not None:
            _in_use[request.digest] = piece
            self.cache[key] = request.digest


def _current_shape_env() -> Any:
    context = torch._guards.TracingContext.try_get()
    mode = None if context is None else context.fake_mode
    return None if mode is None else mode.shape_env


class _GuardsAdded:
    """What a compiler comes to assume about sizes while it compiles a piece, or did for a piece before it:
    what is known already is assumed without another guard.
    """

    def __init__(self, canonical: CanonicalGraph | None) -> None:
        self._canonical = canonical
        self._shape_env = _current_shape_env()
        self._before = 0
        if self._shape_env is not None:
            self._before = _guards_traced.get(self._shape_env, len(self._shape_env.guards))

    def conditions(self) -> list[Condition]:
        if self._shape_env is None or self._canonical is None:
            return []
        added = self._shape_env.guards[self._before :]
        replace: Callable[[Any], Any] = self._shape_env.replace
        if any(not replace(symbol).is_Symbol for symbol in self._canonical.symbols):
            return exactly(self._canonical.sizes)
        expressions = [replace(guard.expr) for guard in added]
        own = set(self._canonical.symbols)
        about_it = [one for one in expressions if not own.isdisjoint(one.free_symbols)]
        return conditions_on(about_it, self._canonical.names, self._canonical.sizes)


def _serves(manifest: Manifest, sizes: dict[str, int]) -> bool:
    try:
        return all(holds(condition, sizes) for condition in manifest.conditions)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):  # not ours, whatever its checksum says
        return False
