# SPDX-License-Identifier: Apache-2.0
"""What is being done, on stderr: a bar in a terminal, a line for each step elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    """Counts steps."""

    def __init__(self, bar: Bar, steps: int) -> None:
        """`steps`: how many there will be."""
        self._bar = bar
        self._steps = steps
        self._begun = 0
        self._task = bar.add_task("starting", total=steps)

    def step(self, words: str) -> None:
        """The next one begins; the one before is done."""
        self._bar.update(self._task, description=words, completed=self._begun)
        self._begun += 1
        if not self._bar.console.is_terminal:
            print(f"[{self._begun}/{self._steps}] {words}", file=sys.stderr, flush=True)


@contextmanager
def progress(steps: int) -> Iterator[Progress]:
    """Shown for as long as the block lasts."""
    console = Console(stderr=True)
    columns = (
        BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    )
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield Progress(bar, steps)
