"""Recording every bucket before the first request: largest first, since later buckets then fit into its
memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atom.runner.model_runner import ModelRunner
    from atom.runner.protocols import Progress


class GraphCapture:
    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def request_sizes(self, max_seqlen_q: int) -> list[int]:
        return []

    def token_sizes(self, *, is_prefill: bool) -> list[int]:
        return []

    def run(self, progress: Progress | None) -> tuple[float, list[int]]:
        return 0.0, []

    def sizes(self) -> dict[str, list[int]]:
        return {}
