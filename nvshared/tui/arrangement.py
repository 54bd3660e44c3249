# SPDX-License-Identifier: Apache-2.0
"""Which GPUs the dashboard shows in a frame, which in a line, and which not, if it is low."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nvshared.control.snapshot import GPUSnapshot, Snapshot

FRAME = 4                               # lines of a GPU without its clients
QUIET = frozenset({"idle", "suspended"})


@dataclass(frozen=True, slots=True)
class Arrangement:
    """All by index of the GPU."""

    framed: tuple[GPUSnapshot, ...]
    rooms: tuple[int | None, ...]       # lines for the clients of each; None: what they need
    lines: tuple[GPUSnapshot, ...] = ()
    left_out: int = 0                   # GPUs


def arranged(snapshot: Snapshot, height: int | None) -> Arrangement:
    """Fits into `height` lines, one at least; None: as many as it takes.

    If there is no room for all frames, GPUs with something going on come first.
    """
    if height is None:
        return Arrangement(snapshot.gpus, (None,) * len(snapshot.gpus))
    least = {gpu.index: FRAME + (2 if snapshot.of(gpu) else 0) for gpu in snapshot.gpus}
    shown = sorted(snapshot.gpus, key=lambda gpu: _rank(snapshot, gpu))
    if sum(least.values()) > height:
        if len(shown) > height:
            shown = shown[:max(0, height - 1)]
        framed = _framed(shown, least, height - len(shown))
    else:
        framed = set(least)
    lines = [gpu for gpu in shown if gpu.index not in framed]
    frames = _by_index(gpu for gpu in shown if gpu.index in framed)
    found = rooms([len(snapshot.of(gpu)) for gpu in frames], height - len(lines))
    return Arrangement(frames, tuple(found), _by_index(lines), len(snapshot.gpus) - len(shown))


def rooms(clients: Sequence[int], height: int) -> list[int]:
    """How many lines each GPU's clients get: what they need, or else an equal part of what is left.

    One at least, even if that is too much.
    """
    left = height - sum(FRAME + (1 if number else 0) for number in clients)
    found = [0] * len(clients)
    order = sorted(range(len(clients)), key=lambda at: clients[at])
    for done, at in enumerate(order):
        found[at] = min(clients[at], max(1, left // (len(order) - done)))
        left -= found[at]
    return found


def _framed(ranked: Sequence[GPUSnapshot], least: dict[int, int], spare: int) -> set[int]:
    """Those for whose frames `spare` lines are enough, beside one line of each; the first ones."""
    found = set()
    for gpu in ranked:
        spare -= least[gpu.index] - 1
        if spare < 0:
            break
        found.add(gpu.index)
    return found


def _rank(snapshot: Snapshot, gpu: GPUSnapshot) -> tuple[bool, int, int]:
    clients = snapshot.of(gpu)
    busy = gpu.state == "lost" or any(client.state not in QUIET for client in clients)
    return not busy, -len(clients), gpu.index


def _by_index(gpus: Iterable[GPUSnapshot]) -> tuple[GPUSnapshot, ...]:
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))
