"""Inductor through `compile_fx`, for torch before 2.8.

There is no artifact object in these releases. What can be kept is Inductor's own cache entry. A graph is
loaded by putting the entry back where Inductor looks for it and compiling the graph again: Inductor finds
the entry and generates nothing. Three of Inductor's internals are
replaced while that happens; each replacement says why.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from atom.compile.errors import ArtifactError
from atom.compile.inductor_options import inductor_folder, options_for, settle_cpu_instructions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import fx

    from atom.compile.compiler_protocol import CompiledCallable
    from atom.config import Config

__all__ = ["AlwaysHitShapeEnv", "InductorAdaptor"]

_ENTRY = "inductor"
_NOTE = "note.json"


class AlwaysHitShapeEnv:
    """Stands in for a shape environment where no trace is in progress.

    Inductor refuses to look up its cache without one, and asks it whether an entry's guards hold. A piece
    compiled for a specific shape has none.
    """

    def __init__(self) -> None:
        self.guards: list[Any] = []

    def evaluate_guards_expression(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def get_pruned_guards(self, *args: Any, **kwargs: Any) -> list[Any]:
        return []

    def produce_guards_expression(self, *args: Any, **kwargs: Any) -> str:
        return ""


class InductorAdaptor:
    """Compiles with `compile_fx` and keeps Inductor's cache entry, with its C++ libraries."""

    name = "inductor"

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
        options = options_for(compiler_config, runtime_shape, example_inputs)
        with inductor_folder(folder / "inductor"), recorded_kernels() as kernels:
            compiled, lookup = _compile(graph, example_inputs, options)
            entry = _entry_of(lookup)
        if not self._save or key is None or entry is None:
            return compiled, None
        saved = folder / key
        shutil.copytree(entry, saved / _ENTRY)
        kernels.copy_to(saved)
        try:
            note = json.dumps({"hash": lookup.hash, "options": options})
        except TypeError:  # an option that is code: another process could not ask for the same entry
            return compiled, None
        (saved / _NOTE).write_text(note, encoding="utf-8")
        return compiled, saved

    def load(
        self,
        handle: Path,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        graph_index: int,
        runtime_shape: int | None = None,
    ) -> CompiledCallable:
        from atom.compile.native_kernels import bundled_kernels

        note = json.loads((handle / _NOTE).read_text(encoding="utf-8"))
        with inductor_folder(self._require_folder() / "inductor"), bundled_kernels(handle):
            shutil.copytree(handle / _ENTRY, _entry_path(note["hash"]), dirs_exist_ok=True)
            compiled, lookup = _compile(graph, example_inputs, note["options"])
        if not lookup.hit:
            raise ArtifactError(f"Inductor asked for {lookup.hash}, the artifact holds {note['hash']}")
        return compiled

    def _require_folder(self) -> Path:
        if self._folder is None:
            raise ArtifactError("initialize_cache comes before compile")
        return self._folder


class _Lookup:
    """What became of one look-up in Inductor's cache."""

    hash: str | None = None
    hit = False


def _entry_path(key: str) -> Path:
    """Where Inductor keeps the entry called `key`, in the folder that is set just now."""
    from torch._inductor.codecache import FxGraphCache

    return Path(FxGraphCache._get_tmp_dir_for_key(key))


def _entry_of(lookup: _Lookup) -> Path | None:
    path = None if lookup.hash is None else _entry_path(lookup.hash)
    return path if path is not None and path.is_dir() else None


def _compile(
    graph: fx.GraphModule, example_inputs: Sequence[Any], options: dict[str, Any]
) -> tuple[CompiledCallable, _Lookup]:
    import torch._functorch.config
    from torch._dynamo.utils import counters
    from torch._inductor.compile_fx import compile_fx

    lookup = _Lookup()
    hits = counters["inductor"]["fxgraph_cache_hit"]
    with (
        _replaced_internals(lookup),
        torch._functorch.config.patch(enable_autograd_cache=False),
        torch._inductor.config.patch(fx_graph_cache=True, fx_graph_remote_cache=False),
    ):
        compiled: Any = compile_fx(graph, list(example_inputs), config_patches=options)
    lookup.hit = counters["inductor"]["fxgraph_cache_hit"] > hits
    return compiled, lookup


@contextlib.contextmanager
def _replaced_internals(lookup: _Lookup) -> Iterator[None]:
    from torch._inductor import codecache

    compute_hash: Callable[..., Any] = codecache.compiled_fx_graph_hash
    get_shape_env: Callable[[], Any] = codecache.FxGraphCache._get_shape_env

    def recorded_hash(*args: Any, **kwargs: Any) -> Any:
        result = compute_hash(*args, **kwargs)
        lookup.hash = result[0]
        return result

    def shape_env_or_stand_in() -> Any:
        return get_shape_env() or AlwaysHitShapeEnv()

    with (
        # The hash is the only name that Inductor has for its entry, and it is not handed out.
        mock.patch.object(codecache, "compiled_fx_graph_hash", recorded_hash),
        # Pieces for specific shapes are compiled outside of Dynamo, where there is no shape environment.
        mock.patch.object(codecache.FxGraphCache, "_get_shape_env", shape_env_or_stand_in),
        # Graphs with higher-order operators are refused; which graph it is was decided by our own key.
        mock.patch.object(codecache.FxGraphCache, "_check_for_hop", return_value=None),
    ):
        yield
