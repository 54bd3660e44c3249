# SPDX-License-Identifier: Apache-2.0
"""GPUs and programs for tests of the dashboard, and functions that read its screen."""

from collections.abc import Sequence

from nvshared.control.snapshot import ClientSnapshot, Snapshot, Unshared
from nvshared.tui.screen import draw
from nvshared.tui.state import Command, Request, View, act, with_snapshot
from nvshared.tui.terminal import Key
from nvshared.units import GIB, SECOND
from tests.unit.test_dashboard import CARD, HOLDER, SHARED, WAITER

WAITS = WAITER._replace(waiting_usec=int(3.9 * SECOND), expected_usec=26 * SECOND, position=1)
IDLE = HOLDER._replace(id=3, pid=77, state="idle", command="python3 -m notebook",
                       tenant="unit:lab.service", allocated=4 * GIB, resident=0, swapped=4 * GIB,
                       borrowed=0, pinned=0)
OUTSIDER = Unshared(99, 0, "blender", 3 * GIB)
SCENE = SHARED._replace(gpus=(CARD._replace(unshared=(OUTSIDER,)),), clients=(HOLDER, WAITS, IDLE))


def seen(scene: Snapshot = SCENE, looks: int = 1) -> View:
    """The dashboard after this number of updates, one a second."""
    state = View()
    for moment in range(looks):
        state = with_snapshot(state, scene, 1000.0 + moment)
    return state


def lines(state: View, width: int = 130, height: int = 40) -> list[str]:
    """Lines as a terminal without colours shows them; checks that each has its width."""
    frame = draw(state, width, height)
    assert [line.cell_len for line in frame.lines] == [width] * height
    return [line.plain.rstrip() for line in frame.lines]


def text(state: View, width: int = 130, height: int = 40) -> str:
    return "\n".join(lines(state, width, height))


def prose(state: View, width: int = 130, height: int = 60) -> str:
    return " ".join(text(state, width, height).replace("│", " ").split())


def strike(state: View, *keys: str, width: int = 130,
           height: int = 40) -> tuple[View, list[Request | Command]]:
    requests = []
    for key in keys:
        state, request = act(state, Key(key), draw(state, width, height))
        requests += [] if request is None else [request]
    return state, requests


def typed(state: View, words: str) -> tuple[View, list[Request | Command]]:
    return strike(state, *words, "enter")


def programs(count: int, gpu: int = 0) -> tuple[ClientSnapshot, ...]:
    first = 1 + 1000 * gpu
    return tuple(
        WAITER._replace(id=first + n, gpu=gpu, pid=first + n, state="idle") for n in range(count))


def scene(cards: int, programs_each: Sequence[int], busy: Sequence[int] = ()) -> Snapshot:
    """This number of GPUs with programs; on busy GPUs a program waits."""
    return Snapshot(
        "1.0", 30, 30_000_000, False, "auto",
        tuple(CARD._replace(index=at, holders=(), state="shared") for at in range(cards)),
        tuple(
            one._replace(state="waiting", waiting_usec=SECOND) if at in busy else one
            for at in range(cards) for one in programs(programs_each[at % len(programs_each)], at)))
