"""Ops, models and a compiler without code generation, shared by the tests of atom-compile."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.library import Library

from atom.compile import compilation_counter, direct_register_custom_op, manager
from atom.compile.decorators import support_torch_compile
from atom.config import CompilationConfig, Config

library = Library("atom_test", "FRAGMENT")


def attend(q: torch.Tensor, k: torch.Tensor, out: torch.Tensor, layer_id: int) -> None:
    out.copy_(q.cumsum(0) + k * (layer_id + 1))


def shift(x: torch.Tensor) -> torch.Tensor:
    return x.roll(1, 0)


def pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x + 1, x * 2


def several(x: torch.Tensor) -> list[torch.Tensor]:
    return [x + 3, x * 4]


def write_into(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 5)


def like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def like_pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def like_several(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.empty_like(x), torch.empty_like(x)]


direct_register_custom_op("attend", attend, ["out"], target_lib=library)
direct_register_custom_op("shift", shift, [], like, target_lib=library)
direct_register_custom_op("pair", pair, [], like_pair, target_lib=library)
direct_register_custom_op("several", several, [], like_several, target_lib=library)
direct_register_custom_op("write_into", write_into, ["out"], target_lib=library)

SPLITTING_OPS = [f"atom_test.{name}" for name in ("attend", "shift", "pair", "several", "write_into")]


class FileCompiler:
    """Runs graphs as they are, and saves a few files for each, as a real compiler would."""

    name = "files"
    nbytes = 4096

    def __init__(self) -> None:
        self.folder = Path()
        self.save = False
        self.compiled: list[int | None] = []
        self.loaded: list[int | None] = []

    def initialize_cache(self, cache_dir: Path, disable_cache: bool = False, prefix: str = "") -> None:
        self.folder, self.save = cache_dir, not disable_cache

    def compute_hash(self, vllm_config: Any) -> str:
        return self.name

    def compile(
        self,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        compiler_config: dict[str, Any],
        runtime_shape: int | None = None,
        key: str | None = None,
    ) -> tuple[Callable[..., Any], Path | None]:
        self.compiled.append(runtime_shape)
        if not self.save or key is None:
            return graph.forward, None
        saved = self.folder / key
        (saved / "parts").mkdir(parents=True)
        for number in range(4):
            (saved / "parts" / str(number)).write_bytes(bytes([number]) * self.nbytes)
        (saved / "code").write_bytes(pickle.dumps(graph.code))
        return graph.forward, saved

    def load(
        self,
        handle: Path,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        graph_index: int,
        runtime_shape: int | None = None,
    ) -> Callable[..., Any]:
        assert [len((handle / "parts" / str(n)).read_bytes()) for n in range(4)] == [self.nbytes] * 4
        pickle.loads((handle / "code").read_bytes())
        self.loaded.append(runtime_shape)
        return graph.forward


@pytest.fixture(autouse=True)
def surroundings() -> Iterator[None]:
    """A new process, as far as compilation can tell."""
    manager._in_use.clear()
    torch._dynamo.reset()
    compilation_counter.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch) -> list[FileCompiler]:
    """Makes every manager use a `FileCompiler`; the list of those made so far."""
    made: list[FileCompiler] = []

    def make(compilation_config: CompilationConfig) -> FileCompiler:
        made.append(FileCompiler())
        return made[-1]

    monkeypatch.setattr("atom.compile.manager.make_compiler", make)
    return made


@pytest.fixture
def new_process() -> Callable[[], None]:
    """Forgets what this process has compiled, as a new one would have."""

    def forget() -> None:
        manager._in_use.clear()
        torch._dynamo.reset()
        compilation_counter.reset()

    return forget


ConfigMaker = Callable[..., Config]


@pytest.fixture
def config_for(tmp_path: Path) -> ConfigMaker:
    """Makes a configuration whose cache lies in `tmp_path / "cache"`."""

    def make(level: int = 3, *, max_num_batched_tokens: int = 8192, **compilation: Any) -> Config:
        settings = {"splitting_ops": SPLITTING_OPS, "cache_dir": str(tmp_path / "cache"), **compilation}
        return Config(
            "test",
            max_num_batched_tokens=max_num_batched_tokens,
            compilation_config=CompilationConfig(level=level, **settings),
        )

    return make


ModelMaker = Callable[..., Any]


@pytest.fixture
def model_of() -> ModelMaker:
    """Makes a decorated model from a function `(module, x) -> outputs`, which may use weights `w` and `b`."""

    def make(
        function: Callable[..., Any],
        config: Config,
        *,
        size: int = 8,
        dims: dict[str, int] | None = None,
        prefix: str = "",
    ) -> Any:
        class Model(nn.Module):
            def __init__(self, *, atom_config: Config, prefix: str = "") -> None:
                super().__init__()
                generator = torch.Generator().manual_seed(0)
                self.w = nn.Parameter(torch.randn(size, size, generator=generator) / size)
                self.b = nn.Parameter(torch.randn(size, generator=generator))

            def forward(self, x: torch.Tensor) -> Any:
                return function(self, x)

        return support_torch_compile(dynamic_arg_dims=dims)(Model)(atom_config=config, prefix=prefix)

    return make


class Layer(nn.Module):
    def __init__(self, layer_id: int, size: int) -> None:
        super().__init__()
        self.layer_id = layer_id
        self.qk = nn.Linear(size, 2 * size)
        self.up = nn.Linear(size, 2 * size)
        self.down = nn.Linear(2 * size, size)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        residual = residual + x
        q, k = self.qk(residual / (residual.pow(2).mean(-1, keepdim=True) + 1).sqrt()).chunk(2, -1)
        out = torch.empty_like(q)
        torch.ops.atom_test.attend(q, k, out, self.layer_id)
        return self.down(torch.relu(self.up(out + residual))), residual


@pytest.fixture
def stack_of() -> ModelMaker:
    """Makes a decoder-like stack of identical layers around the toy attention op."""

    def make(config: Config, *, layers: int = 3, size: int = 8, prefix: str = "") -> Any:
        @support_torch_compile
        class Stack(nn.Module):
            def __init__(self, *, atom_config: Config, prefix: str = "") -> None:
                super().__init__()
                self.embed = nn.Embedding(64, size)
                self.layers = nn.ModuleList(Layer(i, size) for i in range(layers))
                self.norm = nn.LayerNorm(size)

            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                x = self.embed(ids)
                residual = torch.zeros_like(x)
                for layer in self.layers:
                    x, residual = layer(x, residual)
                return self.norm(x + residual)

        torch.manual_seed(0)
        return Stack(atom_config=config, prefix=prefix)

    return make


@pytest.fixture
def in_children() -> Iterator[Callable[..., list[int]]]:
    """Runs functions in forked children; on leaving, ends those that still run.

    With `wait`, the children's exit codes: 0 when the function returned, 1 when it raised.
    """
    alive: set[int] = set()

    def run(*functions: Callable[[], None], wait: bool = True) -> list[int]:
        pids = [_forked(function) for function in functions]
        alive.update(pids)
        if not wait:
            return pids
        return [reap(pid) for pid in pids]

    def reap(pid: int) -> int:
        alive.discard(pid)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    run.reap = reap  # type: ignore[attr-defined]
    yield run
    for pid in list(alive):
        os.kill(pid, signal.SIGKILL)
        reap(pid)


def _forked(function: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        function()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def pytest_sessionfinish() -> None:
    """Dynamo tidies up after code objects as they die, and complains when that is while Python shuts down."""
    from torch._dynamo.utils import CleanupManager

    for code in CleanupManager.instance.values.values():
        code.clear()
