"""What makes a key another one: one thing at a time, A, B, A."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from atom.compile import compilation_counter
from atom.compile.cache_key import circumstances, digest_of, stable, traced_files, traced_source_digest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CPU = [torch.device("cpu")]


@dataclass
class Settings:
    """What a model is built from here; each field changes the graph in another way."""

    rows_burnt_in: int = 7
    dtype: torch.dtype = torch.float32
    layers: int = 2
    scaling: float = 1.0
    flag: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    max_num_batched_tokens: int = 8192


VARIED = {
    "draft tokens": {"rows_burnt_in": 9},
    "number format": {"dtype": torch.float64},
    "layers": {"layers": 3},
    "rope scaling": {"scaling": 0.5},
    "a field that changes a constant": {"flag": True},
    "a compiler option": {"options": (("max_autotune", True),)},
    "a limit": {"max_num_batched_tokens": 4096},
}


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("what", [*VARIED, "an environment variable read while building"])
def test_a_b_a_is_right_each_time_and_a_hit_the_third(
    config_for: Any,
    model_of: Any,
    new_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    def run(settings: Settings) -> int:
        new_process()
        factor = float(os.environ.get("MODEL_FACTOR", "1"))

        def forward(self: Any, x: torch.Tensor) -> Any:
            for _ in range(settings.layers):
                x = torch.ops.atom_test.shift(x * settings.scaling + settings.flag) * factor
            return x[: settings.rows_burnt_in] if settings.rows_burnt_in < x.shape[0] else x

        config = config_for(
            inductor_compile_config=dict(settings.options),
            max_num_batched_tokens=settings.max_num_batched_tokens,
        )
        model = model_of(forward, config)
        for rows in (12, 2):
            x = torch.randn(rows, 8, dtype=settings.dtype)
            assert torch.equal(model(x), model.forward(x))
        return compilation_counter.num_backend_compilations

    a = Settings()
    assert run(a) > 0
    if what in VARIED:
        run(Settings(**VARIED[what]))
    else:
        monkeypatch.setenv("MODEL_FACTOR", "3")
        assert run(a) > 0
        monkeypatch.delenv("MODEL_FACTOR")
    assert run(a) == 0


def test_circumstances_are_the_same_after_compiling() -> None:
    before = digest_of(circumstances(CPU))
    torch.compile(lambda x: torch.relu(x) + 1, backend="aot_eager")(torch.ones(3))
    assert digest_of(circumstances(CPU)) == before


@pytest.mark.parametrize("name", ["TORCHINDUCTOR_FREEZING", "TRITON_INTERPRET", "CXX"])
def test_variables_that_compilers_read_count(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = digest_of(circumstances(CPU))
    monkeypatch.setenv(name, "another")
    assert digest_of(circumstances(CPU)) != before


@pytest.mark.parametrize("name", ["TORCH_LOGS", "TRITON_CACHE_DIR", "CUDA_VISIBLE_DEVICES", "HOME_OF_X"])
def test_variables_that_change_no_code_do_not(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = digest_of(circumstances(CPU))
    monkeypatch.setenv(name, "another")
    assert digest_of(circumstances(CPU)) == before


def test_every_inductor_setting_counts() -> None:
    from torch._inductor import config

    before = digest_of(circumstances(CPU))
    with config.patch(epilogue_fusion=not config.epilogue_fusion):
        assert digest_of(circumstances(CPU)) != before


def test_process_wide_flags_count() -> None:
    before = digest_of(circumstances(CPU))
    with torch.enable_grad():
        assert digest_of(circumstances(CPU)) != before
    torch.use_deterministic_algorithms(True)
    try:
        assert digest_of(circumstances(CPU)) != before
    finally:
        torch.use_deterministic_algorithms(False)


def test_digests_do_not_depend_on_order_or_addresses() -> None:
    class Thing:
        pass

    assert digest_of({"a": 1, "b": {3, 1}}) == digest_of({"b": {1, 3}, "a": 1})
    assert stable(Thing()) == stable(Thing())
    assert digest_of([1.0]) != digest_of([1])


def test_source_text_counts_by_content(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("x = 1")
    before = traced_source_digest([str(path)])
    path.write_text("x = 2")
    assert traced_source_digest([str(path)]) != before
    assert traced_source_digest([str(tmp_path / "absent.py")]) != before


def test_the_traced_files_are_those_of_the_model() -> None:
    found: set[str] = set()

    def look(gm: Any, inputs: Any) -> Any:
        found.update(traced_files(gm.graph))
        return gm

    torch.compile(lambda x: x + 1, backend=look)(torch.ones(3))
    assert found == {__file__}
