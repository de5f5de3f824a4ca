"""Executables that the recordings of one forward take turns in.

Making an executable takes most of what ending a segment costs, and each takes device memory: 119 kB on an
H200, times segments, times buckets. Segments at the same place of a ladder's buckets mostly differ in sizes
and addresses alone, to which the driver updates an executable in a few microseconds. So the first recording
makes them, later ones borrow them, and a replay that follows another bucket's has them updated first; one
that follows its own pays for a comparison.

A segment that draws random numbers never shares: torch has to launch it. Whether one draws is only seen when
torch launches it, so a segment borrows only if every kernel in it was part of one that was seen not to.
"""

from __future__ import annotations

from ctypes import c_void_p
from typing import TYPE_CHECKING

import torch

from atom.graphs.driver import graph_update, kernel_functions
from atom.graphs.errors import RecordingError

if TYPE_CHECKING:
    from atom.graphs.launch import Launch

VARIANTS = 4
"""Executables for one place in the ladder: more are made where the driver cannot update, but not lent."""


class Turns:
    """The executables of one forward's recordings on one device, by place."""

    def __init__(self) -> None:
        self.device: torch.device | None = None
        self.holder: object = None
        """The key of the `Turn` whose graphs are in the executables; None while they are mixed."""
        self._lent: dict[int, list[Launch]] = {}
        self._drawless: set[int] = set()
        """Kernels seen in segments that draw no random numbers."""

    def on(self, device: torch.device) -> Turns | None:
        """Itself, on the one device it serves, where the driver can update executables."""
        if graph_update() is None:
            return None
        self.device = self.device or device
        return self if self.device == device else None

    def borrow(self, place: int, graph: int) -> Launch | None:
        """The maker of an executable that now holds `graph`; None where there is none to be had."""
        lent, update = self._lent.get(place), graph_update()
        if not lent or update is None:
            return None
        functions = kernel_functions(graph)
        if functions is None or not functions <= self._drawless:
            return None
        self.holder = None  # also where the driver refuses: what it leaves then is not documented
        for maker in lent:
            if maker.executable is not None and update(maker.executable, c_void_p(graph)) == 0:
                return maker
        return None

    def add(self, place: int, launch: Launch, graph: int) -> bool:
        """Lends a new executable from now on, unless it draws or there are enough; says whether it does."""
        functions = kernel_functions(graph)
        if launch.executable is None or functions is None:
            return False
        self._drawless |= functions
        lent = self._lent.setdefault(place, [])
        if len(lent) == VARIANTS:
            return False
        lent.append(launch)
        return True


class Turn:
    """One recording's claim on the executables it shares."""

    def __init__(self, turns: Turns, loads: list[tuple[c_void_p, c_void_p]]) -> None:
        self.turns, self._loads = turns, loads
        self.key = object()
        """Not the turn itself, which refers to the turns: recordings are to go without a collector's help."""

    def take(self) -> None:
        """Updates every shared executable to this recording's graphs.

        Raises:
            RecordingError: the driver refuses what it accepted before.
        """
        self.turns.holder = None
        if not self._load():
            # A thread that has not used the device has no context yet; any call of the runtime gives it one.
            with torch.cuda.device(self.turns.device):
                torch.cuda.current_stream().query()
                if not self._load():
                    raise RecordingError(
                        "the driver refuses to load a segment that it took when recording: record it again"
                    )
        self.turns.holder = self.key

    def _load(self) -> bool:
        update = graph_update()
        return update is not None and not any(update(e, graph) for e, graph in self._loads)
