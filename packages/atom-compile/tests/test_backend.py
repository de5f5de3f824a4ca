"""The order of a compilation, and the files it leaves."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

import atom.compile.backend
import atom.compile.compiler_interface
import atom.compile.manager
import atom.compile.piecewise_backend
import atom.utils.backends
import atom.utils.compiler_inferface
import atom.utils.cuda_piecewise_backend
from atom.compile import PiecewiseBackend, ShapeError, compilation_counter
from atom.compile.cache_index import INDEX_NAME, read_index

if TYPE_CHECKING:
    from pathlib import Path

IDS = torch.arange(6)


@pytest.mark.parametrize(
    ("alias", "home", "names"),
    [
        (
            atom.utils.backends,
            atom.compile.backend,
            "CompilerManager VllmBackend SplitItem split_graph PiecewiseCompileInterpreter",
        ),
        (
            atom.utils.compiler_inferface,
            atom.compile.compiler_interface,
            "CompilerInterface InductorAdaptor InductorStandaloneAdaptor AlwaysHitShapeEnv",
        ),
        (
            atom.utils.cuda_piecewise_backend,
            atom.compile.piecewise_backend,
            "PiecewiseBackend ConcreteSizeEntry",
        ),
    ],
)
def test_the_guides_import_paths_are_the_same_modules(alias: Any, home: Any, names: str) -> None:
    assert alias is home
    assert home in sys.modules.values()
    assert all(hasattr(alias, name) for name in names.split())


@pytest.mark.usefixtures("compilers")
def test_index_and_graph_lie_where_the_guide_says(config_for: Any, stack_of: Any, tmp_path: Path) -> None:
    stack_of(config_for(), layers=3, prefix="backbone")(IDS)
    (folder,) = (tmp_path / "cache").glob("*/rank_0/backbone")
    index = read_index(folder / INDEX_NAME)
    assert list(index) == [(None, number, "files") for number in range(4)]
    assert len(set(index.values())) == 3
    text = (folder / "computation_graph.py").read_text()
    ast.parse(text)
    assert "submod_6" in text
    assert "atom_test.attend" in text


@pytest.mark.usefixtures("compilers")
def test_pieces_are_piecewise_backends_and_splitting_ops_are_not(config_for: Any, stack_of: Any) -> None:
    model = stack_of(config_for(), layers=2)
    model(IDS)
    stitched = model._compiled_forward._backend.split_gm
    kinds = [isinstance(vars(stitched)[f"submod_{number}"], PiecewiseBackend) for number in range(5)]
    assert kinds == [True, False, True, False, True]
    assert all(vars(stitched)[f"submod_{number}"].__atom_opaque__ for number in (0, 2, 4))


@pytest.mark.usefixtures("compilers")
def test_level_2_is_one_opaque_piece_whatever_is_listed(config_for: Any, stack_of: Any) -> None:
    model = stack_of(config_for(2), layers=2)
    assert torch.equal(model(IDS), model.forward(IDS))
    stitched = model._compiled_forward._backend.split_gm
    assert isinstance(vars(stitched)["submod_0"], PiecewiseBackend)
    assert compilation_counter.num_pieces == 1


@pytest.mark.usefixtures("compilers")
def test_another_source_configuration_or_prefix_has_a_folder_of_its_own(
    config_for: Any, model_of: Any, tmp_path: Path
) -> None:
    def one(self: Any, x: torch.Tensor) -> Any:
        return torch.ops.atom_test.shift(x + 1)

    x = torch.randn(3, 8)
    model_of(one, config_for())(x)
    model_of(one, config_for(max_num_batched_tokens=4096))(x)
    model_of(one, config_for(), prefix="other")(x)
    runs = {path.parent.parent.parent.name for path in (tmp_path / "cache").glob(f"*/*/*/{INDEX_NAME}")}
    assert len(runs) == 2
    assert len(list((tmp_path / "cache").glob(f"*/*/*/{INDEX_NAME}"))) == 3
    assert compilation_counter.num_backend_compilations == 1


@pytest.mark.usefixtures("compilers")
def test_without_a_cache_no_file_is_made(config_for: Any, stack_of: Any, tmp_path: Path) -> None:
    model = stack_of(config_for(disable_compile_cache=True))
    assert torch.equal(model(IDS), model.forward(IDS))
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("compilers")
def test_sizes_to_compile_for_are_specialised_when_met_but_never_first(
    config_for: Any, stack_of: Any, compilers: Any
) -> None:
    model = stack_of(config_for(compile_sizes=[6, 4]), layers=2)
    for size in (6, 5, 6, 6, 4):
        ids = torch.arange(size)
        assert torch.equal(model(ids), model.forward(ids))
    assert compilers[0].compiled == [None] * 3 + [6] * 3 + [4] * 3
    first = vars(model._compiled_forward._backend.split_gm)["submod_0"]
    assert {size: entry.compiled for size, entry in first.concrete_size_entries.items()} == {
        4: True,
        6: True,
    }


@pytest.mark.usefixtures("compilers")
def test_inputs_are_copied_to_buffers_that_never_move(config_for: Any, model_of: Any) -> None:
    seen: list[int] = []

    def forward(self: Any, x: torch.Tensor) -> Any:
        return torch.ops.atom_test.shift(x)

    config = config_for(cudagraph_copy_inputs=True, max_num_batched_tokens=16, cudagraph_mode="TR_HYBRID")
    model = model_of(forward, config)
    model(torch.zeros(3, 8))
    split = model._compiled_forward._backend.split_gm
    original = vars(split)["submod_0"]
    vars(split)["submod_0"] = lambda *args: (seen.append(args[0].data_ptr()), original(*args))[1]
    for rows in (4, 16, 2):
        x = torch.randn(rows, 8)
        assert torch.equal(model(x), x.roll(1, 0))
    assert len(set(seen)) == 1
    with pytest.raises(ShapeError, match=r"17 rows.*hold 16"):
        model(torch.zeros(17, 8))


@pytest.mark.usefixtures("compilers")
def test_a_debug_dump_holds_graphs_and_code(config_for: Any, stack_of: Any, tmp_path: Path) -> None:
    stack_of(config_for(debug_dump_path=str(tmp_path / "dump")), layers=1, prefix="part")(IDS)
    folder = tmp_path / "dump" / "rank_0" / "part"
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"traced_graph_0.py", "split_graph_0.py", "bytecode_0.txt"} <= names
    assert {"split_graph_0/submod_1_splitting.py", "split_graph_0/submod_2_piece.py"} <= names
    assert "atom_test.attend" in (folder / "traced_graph_0.py").read_text()
    assert "__compiled_fn" in (folder / "bytecode_0.txt").read_text()


@pytest.mark.parametrize("limit", [2**20, 8])
def test_a_bound_that_compiling_adds_changes_no_later_piece(
    compilers: Any, config_for: Any, stack_of: Any, new_process: Any, monkeypatch: Any, limit: int
) -> None:
    """Inductor bounds sizes on a GPU, for 32-bit indices, when it compiles a piece, not when it loads one."""
    make = atom.compile.manager.make_compiler

    def make_bounding(config: Any) -> Any:
        compiler: Any = make(config)
        compile_one = compiler.compile

        def bounded(graph: Any, example_inputs: Any, *rest: Any) -> Any:
            for value in example_inputs:
                if isinstance(value, torch.SymInt):
                    bool(value * 4 <= 4 * limit)
            return compile_one(graph, example_inputs, *rest)

        compiler.compile = bounded
        return compiler

    monkeypatch.setattr("atom.compile.manager.make_compiler", make_bounding)
    ids = torch.arange(6)
    cold = stack_of(config_for(), layers=6)
    assert torch.equal(cold(ids), cold.forward(ids))
    assert compilation_counter.num_backend_compilations == 3
    new_process()
    warm = stack_of(config_for(), layers=6)
    warm(ids)
    assert compilation_counter.num_backend_compilations == 0
    assert compilation_counter.num_cache_hits == 3
    larger = torch.arange(12)  # beyond the smaller limit every piece is compiled for another range
    assert warm(larger).shape[0] == 12
    assert (compilation_counter.num_backend_compilations > 0) == (limit < 12)
