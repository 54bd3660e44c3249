# SPDX-License-Identifier: Apache-2.0
"""The demonstration from its first to its last line."""

import sys
import tempfile
from pathlib import Path
from typing import TextIO

from nvshared.demo import acts
from nvshared.demo.card import DemoCard, find
from nvshared.demo.report import Report
from nvshared.demo.show import show_on
from nvshared.units import MIB

LONGEST_TMPDIR = 60                     # characters: a socket's path may have 107 in all


async def play(*, simulate: bool, file: TextIO = sys.stdout) -> Report:
    """Plays the three acts, seen in `file`. Raises NvshareError if one cannot be played.

    `simulate`: on a simulated GPU even where there is a real one.
    """
    place = "/tmp" if len(tempfile.gettempdir()) > LONGEST_TMPDIR else None
    with tempfile.TemporaryDirectory(prefix="nvshare-demo-", dir=place) as name:
        folder = Path(name)
        card = await find(folder, simulate)
        print(_opening(card), file=file, flush=True)
        with show_on(file) as show:
            show.act("Together, with nvshared: they take turns.")
            shared = await acts.together(card, folder, show)
            show.act("One after the other.")
            in_turn = await acts.in_turn(card, show)
            show.act("Together, without nvshared: the second finds no memory.")
            unshared = await acts.unshared(card, show)
        return Report(card, shared, in_turn, unshared)


def _opening(card: DemoCard) -> str:
    memory = acts.tasks(card)[0].memory
    if card.simulated:
        where = f"The GPU is simulated: {card.why}."
    else:
        where = f"The GPU is {card.name}; {card.why}."
    return (
        f"{where}\n"
        f"Two programs share it. Each needs {memory // MIB} of {card.capacity // MIB} MiB of its "
        f"memory, {memory / card.capacity:.0%}."
    )
