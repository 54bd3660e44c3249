# SPDX-License-Identifier: Apache-2.0
"""The dashboard as one picture, for whoever has a snapshot and wants to print it."""

from collections.abc import Iterator
from typing import Final

from rich.console import Console, ConsoleOptions
from rich.text import Text

from nvshared.control.snapshot import Snapshot
from nvshared.tui.listing import listing
from nvshared.tui.panels import gpus
from nvshared.tui.past import Past
from nvshared.tui.rows import rows
from nvshared.tui.state import State

NOTHING: Final = Past()


class Dashboard:
    """As wide as there is room where it is drawn, and as high as it takes."""

    def __init__(self, snapshot: Snapshot, past: Past = NOTHING) -> None:
        self._state = State(snapshot, past)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = options.max_width
        assert self._state.snapshot is not None
        yield from gpus(self._state.snapshot, self._state.past, width, None, 0)
        if shown := rows(self._state):
            lines, _ = listing(self._state, shown, 0, len(shown), width, 0)
            yield from lines
