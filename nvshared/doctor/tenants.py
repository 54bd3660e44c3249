# SPDX-License-Identifier: Apache-2.0
"""Programs on the cards: which share, which do not, and which have a library that is outdated."""

import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from nvshared.control.snapshot import Snapshot
from nvshared.doctor.cards import Seen
from nvshared.doctor.finding import Finding, note, ok, warning
from nvshared.machine import cgroup, host
from nvshared.machine.cgroup import Group, Limit
from nvshared.machine.peer import shown
from nvshared.quantity import sized
from nvshared.units import GIB

OURS = "/libnvshare.so"
OUTDATED = OURS + " (deleted)"


def findings(seen: Seen, snapshot: Snapshot | None) -> Iterator[Finding]:
    """Clients as NVML and as nvshared see them."""
    clients = snapshot.clients if snapshot is not None else ()
    sharing = {(client.gpu, client.pid) for client in clients}
    if sharing:
        yield ok("clients", _count(len(sharing), "program shares its GPU", "programs share theirs"))
    for card in seen.cards:
        for process in card.sample.processes or () if card.sample is not None else ():
            if (card.facts.index, process.pid) not in sharing and process.pid != os.getpid():
                memory = None if process.memory is None else process.memory / GIB
                yield _unshared(card.facts.index, process.pid, memory, snapshot is not None)
    for pid in sorted({client.pid for client in clients}):
        if any(line.endswith(OUTDATED) for line in _mapped(pid) or ()):
            yield warning(
                "library", f"{shown(pid)} has a libnvshare.so that has been replaced since",
                "start it again when it suits, to have the new one",
            )
    yield from _limited(seen, sorted({client.pid for client in clients}))


def _limited(seen: Seen, pids: Iterable[int]) -> Iterator[Finding]:
    """Programs in control groups that may have less memory than a card has."""
    card = max((card.facts.memory_total for card in seen.cards), default=0)
    inside: dict[Limit, list[int]] = {}
    limit_of = cache(Group.limit)       # the same for all programs, though it changes
    for pid in pids:
        groups = cgroup.chain(host.process(pid, "cgroup"))
        limits = [limit for group in groups if (limit := limit_of(group)) is not None]
        if limits and (least := min(limits, key=lambda one: one.size)).size < card:
            inside.setdefault(least, []).append(pid)
    for limit, members in inside.items():
        more = f" and {len(members) - 1} more" if len(members) > 1 else ""
        yield note(
            "memory limit", f"{shown(members[0])}{more}: {limit.file} is {sized(limit.size)}, of "
            f"which {limit.free / GIB:.1f} GiB are free, and the card has {card / GIB:.1f} GiB",
            "more GPU memory than can move to the host within that is refused: nvshared(8)",
        )


def _unshared(gpu: int, pid: int, memory: float | None, heard: bool) -> Finding:
    """`heard`: nvshared has said that this is no client of its own."""
    size = "" if memory is None else f" with {memory:.1f} GiB"
    uses = f"{shown(pid)} uses GPU {gpu}{size}"
    mapped = _mapped(pid)
    loaded = any(line.endswith((OURS, OUTDATED)) for line in mapped or ())
    if not heard and (loaded or mapped is None):
        has = "has the library" if loaded else "cannot be looked into"
        return note(
            "unshared", f"{uses} and {has}; nvshared does not answer on this bus, so whether it "
            "shares cannot be told",
        )
    words = f"{uses} without nvshared"
    if loaded:
        return warning(
            "unshared", f"{words}, although it has the library",
            "it began while nvshared was not there, or was refused: start it again; "
            "journalctl -u nvshared says which",
        )
    return warning(
        "unshared", f"{words}; what it holds is missing to the others, and it waits for nobody",
        "start it again with: nvsharectl run -- PROGRAM",
    )


def _mapped(pid: int) -> list[str] | None:
    try:
        return host.kernel_text(Path(f"/proc/{pid}/maps")).split("\n")
    except OSError:
        return None                     # another user's, or gone already


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
