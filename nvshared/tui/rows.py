# SPDX-License-Identifier: Apache-2.0
"""Which programs the list shows, and in which order."""

from collections.abc import Callable
from typing import Any

from nvshared.control.snapshot import ClientSnapshot, GPUSnapshot, Snapshot, Unshared
from nvshared.tui.quantities import command, process
from nvshared.tui.state import State, Who
from nvshared.tui.tables import limits, tenant, user

UNSHARED = "unshared"                   # the state of a program that nvshare has no part in

# What goes first where the order is that of the queue.
_RANKS = {"running": 0, "draining": 0, "loading": 1, "idle": 3, "suspended": 4, UNSHARED: 5}
_QUEUED = 2


def who(client: ClientSnapshot) -> Who:
    """Its process, where that is known, as its id changes when the daemon is started again."""
    return client.gpu, client.pid or -client.id


def _queue(client: ClientSnapshot) -> tuple[int, int, int, int]:
    return client.gpu, _RANKS.get(client.state, _QUEUED), client.position, client.id


def _age(client: ClientSnapshot) -> tuple[int, bool, int]:
    """Those who share nothing come last; the others stay where they are."""
    return client.gpu, client.state == UNSHARED, client.id


def _unknown_last(value: int | None) -> tuple[bool, int]:
    return value is None, value or 0


# By heading: what is compared, and whether the largest comes first.
SORTS: dict[str, tuple[Callable[[ClientSnapshot], Any], bool]] = {
    "GPU": (_age, False),
    "PID": (lambda one: one.pid, False),
    "USER": (lambda one: user(one.uid), False),
    "TENANT": (tenant, False),
    "STATE": (_queue, False),
    "MEM": (lambda one: one.allocated + one.pinned, True),
    "RESIDENT": (lambda one: one.resident + one.pinned, True),
    "HELD": (lambda one: one.held_usec, True),
    "WAITS": (lambda one: one.waiting_usec, True),
    "LEFT": (lambda one: _unknown_last(one.expected_usec), True),
    "IDLE": (lambda one: one.idle_usec, True),
    "LIMITS": (limits, True),
    "COMMAND": (command, False),
}


def all_rows(snapshot: Snapshot) -> list[ClientSnapshot]:
    """All programs on all GPUs, also those that share none."""
    return [
        *snapshot.clients,
        *(_outsider(gpu, one) for gpu in snapshot.gpus for one in gpu.unshared),
    ]


def rows(state: State) -> list[ClientSnapshot]:
    """Those that the filter lets through, sorted as is wanted."""
    if state.snapshot is None:
        return []
    found = [one for one in all_rows(state.snapshot) if matches(one, state.filter)]
    compare, falling = SORTS[state.sort]
    found.sort(key=_age)                # where nothing else is compared
    found.sort(key=compare, reverse=falling is not state.reverse)
    return found


def matches(client: ClientSnapshot, text: str) -> bool:
    """Whether each word is found in it: gpu0, user:alice, waiting, a part of a command."""
    known = " ".join((
        f"gpu{client.gpu}", f"gpu:{client.gpu}", process(client), client.tenant,
        tenant(client), f"user:{user(client.uid)}", client.state, client.command,
    )).lower()
    return all(word in known for word in text.lower().split())


def _outsider(gpu: GPUSnapshot, one: Unshared) -> ClientSnapshot:
    """As a program of which nothing but its memory is known."""
    return ClientSnapshot(
        id=-one.pid, gpu=gpu.index, pid=one.pid, uid=one.uid, name=one.name, command=one.name,
        tenant="", gang="", state=UNSHARED, stays="", memory_limit=0, compute_limit=100, weight=100,
        suspended=False, allocated=0, resident=0, swapped=0, pinned=one.memory, held_usec=0,
        waited_usec=0, waiting_usec=0, idle_usec=0, expected_usec=0, position=0, turns=0,
        bytes_in=0, bytes_out=0,
    )
