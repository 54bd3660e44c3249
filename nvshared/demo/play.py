# SPDX-License-Identifier: Apache-2.0
"""The demonstration from its first to its last line."""

import sys
import tempfile
from pathlib import Path
from typing import TextIO

from nvshared.demo import acts
from nvshared.demo.gpu import DemoGPU, find
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
        gpu = await find(folder, simulate)
        print(_opening(gpu), file=file, flush=True)
        with show_on(file) as show:
            show.act("Together, with nvshared: they take turns.")
            shared = await acts.together(gpu, folder, show)
            show.act("One after the other.")
            in_turn = await acts.in_turn(gpu, show)
            show.act("Together, without nvshared: the second finds no memory.")
            unshared = await acts.unshared(gpu, show)
        return Report(gpu, shared, in_turn, unshared)


def _opening(gpu: DemoGPU) -> str:
    memory = acts.tasks(gpu)[0].memory
    if gpu.simulated:
        where = f"The GPU is simulated: {gpu.why}."
    else:
        where = f"The GPU is {gpu.name}; {gpu.why}."
    return (
        f"{where}\n"
        f"Two programs share it. Each needs {memory // MIB} of {gpu.capacity // MIB} MiB of its "
        f"memory, {memory / gpu.capacity:.0%}."
    )
