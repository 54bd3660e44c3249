# SPDX-License-Identifier: Apache-2.0
"""Expected durations of notebooks' cells on a card and its bus, to compare with measurements.

Cells with resident memory share the card equally; other cells first wait for their load, and
loads share the bus equally. Evictions, starts, drains and hand-overs take no time in the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

Times = Sequence[Sequence[float]]       # by notebook: seconds from the start, ascending
FULL = 1 - 1e-9                         # part of a notebook's memory that counts as all (rounding)


@dataclass(slots=True)
class _Notebook:
    due: list[float]                    # times of the remaining cells, the next cell last
    held: float = 0.0                   # part of its memory that is on the card
    submitted: float | None = None      # None: it has no cell to compute
    idle_since: float = 0.0
    took: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Model:
    notebooks: list[_Notebook]
    cell: float                         # seconds of GPU time of a cell
    way_in: float                       # seconds that the bus needs for a notebook's memory
    room: float                         # free memory of the card, in notebooks
    now: float = 0.0
    waiting: list[int] = field(default_factory=list)
    # by notebook: seconds that its load still needs on a free bus
    coming: dict[int, float] = field(default_factory=dict)
    # by notebook: seconds that its cell still needs on a free card
    computing: dict[int, float] = field(default_factory=dict)

    def run(self) -> list[list[float]]:
        while (soonest := min(
            (when for when in (self._due(), _first(self.coming), _first(self.computing))
             if when is not None), default=None,
        )) is not None:
            self._pass(soonest)
            for number in [n for n, left in self.coming.items() if left <= 0]:
                del self.coming[number]
                self.computing[number] = self.cell
            for number in [n for n, left in self.computing.items() if left <= 0]:
                del self.computing[number]
                self._ends(self.notebooks[number])
            for number, notebook in enumerate(self.notebooks):
                if notebook.submitted is None and notebook.due and notebook.due[-1] <= self.now:
                    notebook.submitted = self.now
                    notebook.due.pop()
                    self.waiting.append(number)
            while self.waiting and self._admit(self.waiting[0]):
                self.waiting.pop(0)
        return [notebook.took for notebook in self.notebooks]

    def _due(self) -> float | None:
        """Returns seconds until the next cell of a notebook without an unfinished cell is due."""
        return min(
            (max(0.0, notebook.due[-1] - self.now) for notebook in self.notebooks
             if notebook.submitted is None and notebook.due), default=None)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        for served in (self.coming, self.computing):
            for number in served:
                served[number] -= seconds / len(served)
                if served[number] < self.cell * (1 - FULL):
                    served[number] = 0.0

    def _ends(self, notebook: _Notebook) -> None:
        assert notebook.submitted is not None
        notebook.took.append(self.now - notebook.submitted)
        notebook.submitted = None
        notebook.idle_since = self.now
        if notebook.due:
            notebook.due[-1] = max(notebook.due[-1], self.now)

    def _admit(self, number: int) -> bool:
        notebook = self.notebooks[number]
        missing = 1 - notebook.held
        # Evict memory of idle notebooks first, then of waiting notebooks.
        others = sorted(
            (other for n, other in enumerate(self.notebooks)
             if n != number and n not in self.coming and n not in self.computing),
            key=lambda other: (other.submitted is not None, other.idle_since))
        if missing * FULL > self.room + sum(other.held for other in others):
            return False
        for other in others:
            given = min(other.held, max(0.0, missing - self.room))
            other.held -= given
            self.room += given
        self.room -= missing
        notebook.held = 1.0
        if self.way_in and missing > 1 - FULL:
            self.coming[number] = missing * self.way_in
        else:
            self.computing[number] = self.cell
        return True


def _first(served: dict[int, float]) -> float | None:
    return min(served.values()) * len(served) if served else None


def expected(times: Times, cell: float, way_in: float, places: float) -> list[list[float]]:
    """Returns for each notebook the seconds from submit to result of its cells.

    `cell`: seconds of a cell on a free card. `way_in`: seconds to load a notebook's memory over a
    free bus. `places`: number of notebooks that fit the card, 1 or more. Before the start
    each has filled its memory, in order, so notebooks with the lowest numbers are evicted.
    """
    notebooks = [_Notebook(sorted(cells, reverse=True)) for cells in times]
    room = places
    for number, notebook in reversed(list(enumerate(notebooks))):
        notebook.held = min(1.0, room)
        notebook.idle_since = number - len(notebooks)
        room -= notebook.held
    return _Model(notebooks, cell, way_in, room).run()
