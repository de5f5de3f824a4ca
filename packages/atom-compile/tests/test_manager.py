"""Load or compile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import fx

from atom.compile import CompilerManager, compilation_counter
from atom.compile.artifact_store import ArtifactStore
from atom.compile.cache_index import INDEX_NAME, read_index

if TYPE_CHECKING:
    from pathlib import Path

X = torch.ones(3)


def adding(value: Any) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output((graph.call_function(torch.add, (graph.placeholder("x"), value)),))
    return fx.GraphModule({}, graph)


@pytest.fixture
def manager_of(compilers: Any, config_for: Any, tmp_path: Path) -> Any:
    def make(*, on_disk: bool = True) -> CompilerManager:
        made = CompilerManager(config_for().compilation_config)
        store = ArtifactStore(tmp_path / "cache") if on_disk else None
        made.initialize_cache(tmp_path / "cache" / "run", store, prefix="part")
        return made

    return make


def test_equal_pieces_compile_once_and_share_an_artifact(manager_of: Any, tmp_path: Path) -> None:
    manager = manager_of()
    for index in range(3):
        assert torch.equal(manager.compile(adding(2), [X], index).call(X)[0], X + 2)
    manager.save_to_file()
    assert compilation_counter.num_backend_compilations == 1
    assert compilation_counter.num_process_hits == 2
    index = read_index(tmp_path / "cache" / "run" / INDEX_NAME)
    assert list(index) == [(None, 0, "files"), (None, 1, "files"), (None, 2, "files")]
    assert len(set(index.values())) == 1


def test_a_second_model_of_the_process_compiles_nothing_even_without_disk(manager_of: Any) -> None:
    first, second = manager_of(on_disk=False), manager_of(on_disk=False)
    first.compile(adding(2), [X])
    second.compile(adding(2), [X])
    assert compilation_counter.num_backend_compilations == 1
    assert compilation_counter.num_artifacts_published == 0


def test_a_later_process_loads(manager_of: Any, new_process: Any, compilers: Any) -> None:
    manager_of().compile(adding(2), [X])
    new_process()
    manager = manager_of()
    assert manager.load(adding(3), [X]) is None
    piece = manager.load(adding(2), [X])
    assert torch.equal(piece.call(X)[0], X + 2)
    assert compilers[-1].loaded == [None]


def test_a_stale_index_cannot_lead_to_a_wrong_artifact(
    manager_of: Any, new_process: Any, tmp_path: Path
) -> None:
    manager = manager_of()
    manager.compile(adding(2), [X], 0)
    manager.save_to_file()
    new_process()
    other = manager_of()
    assert other.cache == read_index(tmp_path / "cache" / "run" / INDEX_NAME) != {}
    assert torch.equal(other.compile(adding(5), [X], 0).call(X)[0], X + 5)
    assert compilation_counter.num_backend_compilations == 1


def test_options_shapes_and_compilers_have_artifacts_of_their_own(manager_of: Any) -> None:
    manager = manager_of()
    manager.compile(adding(2), [X])
    manager.compile(adding(2), [X], options={"max_autotune": True})
    manager.compile(adding(2), [X], 0, 3)
    manager.compiler.name = "another"
    manager.compile(adding(2), [X])
    assert compilation_counter.num_backend_compilations == 4


def test_a_piece_that_nothing_identifies_is_compiled_and_not_kept(manager_of: Any, tmp_path: Path) -> None:
    def local(x: torch.Tensor, y: int) -> torch.Tensor:
        return x + y

    graph = adding(2)
    next(node for node in graph.graph.nodes if node.op == "call_function").target = lambda x, y: x + y
    graph.recompile()
    manager = manager_of()
    for _ in range(2):
        assert torch.equal(manager.compile(graph, [X]).call(X)[0], X + 2)
    assert compilation_counter.num_backend_compilations == 2
    assert not (tmp_path / "cache" / "artifacts").exists()


def test_an_artifact_for_other_sizes_is_compiled_again_for_these(
    manager_of: Any, new_process: Any, tmp_path: Path, compilers: Any
) -> None:
    store = ArtifactStore(tmp_path / "cache")
    manager = manager_of()
    manager.compile(adding(2), [X])
    (digest,) = manager.cache.values()
    store.fetch(digest, tmp_path / "copy")
    store.discard(digest)
    store.publish(digest, tmp_path / "copy", compiler="files", conditions=[("LessThan", "unknown", 3)])
    new_process()
    assert torch.equal(manager_of().compile(adding(2), [X]).call(X)[0], X + 2)
    assert compilation_counter.num_artifacts_rejected == 1
    assert compilation_counter.num_backend_compilations == 1


def test_what_the_compiler_raises_reaches_the_caller(manager_of: Any, monkeypatch: Any) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("in the compiler")

    manager = manager_of()
    monkeypatch.setattr(manager.compiler, "compile", fail)
    with pytest.raises(ZeroDivisionError, match="in the compiler"):
        manager.compile(adding(2), [X])
