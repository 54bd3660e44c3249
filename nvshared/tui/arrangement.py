# SPDX-License-Identifier: Apache-2.0
"""How much of each GPU the dashboard shows: graphs, a frame, a line, or only that it is there."""

from collections.abc import Iterable, Sequence

from nvshared.control.snapshot import GPUSnapshot, Snapshot
from nvshared.record import dataclass

FRAME = 4                               # lines of a GPU without graphs,
WITH_GRAPHS = 4                         # and of one with them, beside these
GRAPHS = 2                              # one below the other
HEIGHTS = (20, 16, 12, 8, 5, 3, 2, 1)   # of a graph
HIGH = 40                               # lines of a screen that GPUs may fill but for the list;
PART = 3                                # of a lower one they get this part, if graphs fit there
ROWS = 5                                # of the list below, where there are so many
QUIET = frozenset({"idle", "suspended"})


@dataclass(frozen=True, slots=True)
class Arrangement:
    """All by index of the GPU."""

    framed: tuple[GPUSnapshot, ...]
    graphs: int = 0                     # the height of each; 0: there are none
    lines: tuple[GPUSnapshot, ...] = ()
    left_out: int = 0                   # GPUs


def arranged(snapshot: Snapshot, height: int | None, below: int = 0) -> Arrangement:
    """Fits into `height` lines, one at least; None: as many as it takes.

    `below`: lines that are wanted for what stands below. If there is no room for all frames, GPUs
    with something going on come first.
    """
    number = len(snapshot.gpus)
    if height is None:
        return Arrangement(snapshot.gpus)
    for graphs in HEIGHTS:
        # High graphs are for terminals that have room for everything.
        needed = below if graphs > 1 else min(below, max(ROWS, height * 2 // 3))
        lines = number * (WITH_GRAPHS + GRAPHS * graphs)
        if graphs > 1 and height < HIGH and lines > -(-height // PART):
            continue
        if lines + needed <= height:
            return Arrangement(snapshot.gpus, graphs)
    room = max(1, height - min(below, max(ROWS, height // 2)))
    shown = sorted(snapshot.gpus, key=lambda gpu: _rank(snapshot, gpu))
    if len(shown) > room:
        shown = shown[:room - 1]
    framed = set(_indices(shown[:max(0, room - len(shown)) // (FRAME - 1)]))
    return Arrangement(
        _by_index(gpu for gpu in shown if gpu.index in framed), 0,
        _by_index(gpu for gpu in shown if gpu.index not in framed), number - len(shown),
    )


def _indices(gpus: Sequence[GPUSnapshot]) -> list[int]:
    return [gpu.index for gpu in gpus]


def _rank(snapshot: Snapshot, gpu: GPUSnapshot) -> tuple[bool, int, int]:
    clients = snapshot.of(gpu)
    busy = gpu.state == "lost" or any(client.state not in QUIET for client in clients)
    return not busy, -len(clients), gpu.index


def _by_index(gpus: Iterable[GPUSnapshot]) -> tuple[GPUSnapshot, ...]:
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))
