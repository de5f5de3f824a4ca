"""What people look at: the split graph beside the cache, and everything else on request."""

from __future__ import annotations

import contextlib
import dis
import io
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from atom.compile.atomic_files import write_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType

    from torch import fx

    from atom.compile.split import SplitItem
    from atom.config import Config

__all__ = ["DebugDump", "write_computation_graph"]

logger = logging.getLogger(__name__)

COMPUTATION_GRAPH_NAME = "computation_graph.py"
_HEADER = "from __future__ import annotations\n\nimport torch\n\n"


def write_computation_graph(folder: Path, stitched: fx.GraphModule) -> None:
    """Save the split graph, to be read by people, as `computation_graph.py`; done when it cannot be."""
    path = folder / COMPUTATION_GRAPH_NAME
    if path.is_file():
        return  # the folder's name says that it was written for the same model
    try:
        write_text(path, _HEADER + _source_of(stitched))
    except OSError as error:
        logger.warning("%s cannot be written: %s", path, error)


class DebugDump:
    """Writes traced graphs and code below `debug_dump_path/rank_<i>/<prefix>`; nothing without a path."""

    def __init__(self, atom_config: Config, prefix: str) -> None:
        path = atom_config.compilation_config.debug_dump_path
        rank = f"rank_{atom_config.parallel_config.rank}"
        self.folder = Path(path) / rank / prefix if path else None

    def traced(self, number: int, graph: fx.GraphModule) -> None:
        """The graph as Dynamo traced it."""
        if self.folder is not None:
            self._write(f"traced_graph_{number}.py", _HEADER + _source_of(graph))

    def split(self, number: int, stitched: fx.GraphModule, items: Iterable[SplitItem]) -> None:
        """The graph after splitting, and each of its pieces."""
        if self.folder is None:
            return
        self._write(f"split_graph_{number}.py", _HEADER + stitched.code)
        for item in items:
            kind = "splitting" if item.is_splitting_graph else "piece"
            self._write(
                f"split_graph_{number}/{item.submod_name}_{kind}.py", _HEADER + _source_of(item.graph)
            )

    def code(self, number: int, original: CodeType, compiled: CodeType) -> None:
        """The bytecode that Dynamo made of the forward: decompiled where `depyf` is installed and can, and
        always disassembled."""
        if self.folder is None:
            return
        listing = io.StringIO()
        for title, code in (("original", original), ("compiled", compiled)):
            listing.write(f"# {title}: {code.co_qualname} of {code.co_filename}\n")
            dis.dis(code, file=listing)
        self._write(f"bytecode_{number}.txt", listing.getvalue())
        with contextlib.suppress(Exception):  # depyf is optional, and knows some Python versions only
            import depyf  # type: ignore[import-not-found]

            self._write(f"decompiled_code_{number}.py", depyf.decompile(compiled))

    def _write(self, name: str, text: str) -> None:
        if self.folder is None:
            return
        try:
            write_text(self.folder / name, text)
        except OSError as error:
            logger.warning("%s cannot be written: %s", self.folder / name, error)


def _source_of(graph: fx.GraphModule) -> str:
    # Dynamo names the class "<lambda>", which no reader of Python files accepts.
    return graph.print_readable(print_output=False).replace("<lambda>", "GraphModule")
