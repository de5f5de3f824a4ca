from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atom.models.checkpoint import open_checkpoint
from atom.models.errors import CheckpointError, CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_folder_and_a_gguf_file_are_told_apart(
    save_llama: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    folder, fields, weights = save_llama()
    path = write_gguf(fields, weights)
    for given, kind in ((folder, "safetensors"), (path, "gguf")):
        checkpoint = open_checkpoint(given)
        assert checkpoint is not None
        assert checkpoint.format == kind
        assert checkpoint.path == given
        assert checkpoint.architecture == "LlamaForCausalLM"


def test_a_gguf_file_is_known_by_its_first_bytes(
    save_llama: Callable[..., Any], write_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    _, fields, weights = save_llama()
    renamed = tmp_path / "blob-without-suffix"
    shutil.copy(write_gguf(fields, weights), renamed)
    checkpoint = open_checkpoint(renamed)
    assert checkpoint is not None
    assert checkpoint.format == "gguf"


def test_a_folder_of_one_gguf_file_is_that_file(
    save_llama: Callable[..., Any], write_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    _, fields, weights = save_llama()
    home = tmp_path / "home"
    home.mkdir()
    path = write_gguf(fields, weights, name="home/one.gguf")
    checkpoint = open_checkpoint(home)
    assert checkpoint is not None
    assert checkpoint.path == path
    shutil.copy(path, home / "two.gguf")
    with pytest.raises(CheckpointError, match=r"home: 2 GGUF files; give the path of one, such as one\.gguf"):
        open_checkpoint(home)


def test_what_is_of_no_format_of_ours_is_left_to_others(tmp_path: Path) -> None:
    assert open_checkpoint(tmp_path) is None
    (tmp_path / "notes.txt").write_text("hello")
    assert open_checkpoint(tmp_path / "notes.txt") is None


def test_a_path_to_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="absent: no such file or folder"):
        open_checkpoint(tmp_path / "absent")
    with pytest.raises(CheckpointError):
        open_checkpoint(Path("nul\0in the middle"))
    with pytest.raises(CheckpointError):
        open_checkpoint(Path("x" * 5000))


def test_weights_alone_say_what_is_missing(save_llama: Callable[..., Any]) -> None:
    folder, _, _ = save_llama()
    with pytest.raises(CheckpointError, match=r"weights alone; give the folder that also has config\.json"):
        open_checkpoint(folder / "model.safetensors")
    (folder / "config.json").unlink()
    with pytest.raises(CorruptCheckpointError, match=r"has weights but no config\.json"):
        open_checkpoint(folder)


def test_a_file_of_the_right_name_and_wrong_content_is_ours_and_bad(tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_text("<html>Not found</html>")
    with pytest.raises(CorruptCheckpointError, match="does not begin with 'GGUF'"):
        open_checkpoint(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_no_checkpoint_and_hangs_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(CheckpointError, match="not a regular file or folder"):
        open_checkpoint(tmp_path / "pipe.gguf")
