# SPDX-License-Identifier: Apache-2.0
"""How much host memory may be taken for what does not fit on the cards.

What is swapped out cannot be swapped out again: it is locked, because the
card's copy engines read and write it. So the budget is derived from what is
really free, and the rest is left to everybody else.

What programs hold of it already, since a daemon before us let them, is not free, but
it is part of what may be taken; without it they would count against what they lack.
They say themselves how much that is, and any user's program may say anything. So it is
believed as far as the kernel has it, at the same moment as what is free:

    of a process     no more than the private memory it has (RssAnon), as the library's is;
    of all together  no more than all processes of the host have (AnonPages): memory that
                     a process shares with its children is all of it in each one's figure;
    in a container   what is in there alone, and no more than is used in there.

Who says so of memory that it has for other purposes gains nothing by it: it could as well
take that memory after we have looked. What is shared exactly /proc/PID/smaps_rollup knows,
but it is not for everybody to read, and waits for a lock which that process may keep.
Managed memory that has left a card is not in RssAnon, and is not counted.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nvshared.machine import cgroup

SAFE_SHARE = 0.8                        # of what is free at start

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/proc/self/cgroup")
PROCESSES = Path("/proc")
START_FIELD = 22 - 3                    # of proc(5)'s stat, counted from behind the name


@dataclass(frozen=True, slots=True)
class _Room:
    """The host, or a control group that we are in and that has a limit; bytes."""

    total: int
    free: int                           # that could be taken without driving anybody into swap
    used: int                           # by processes
    group: Path | None = None           # its folder; None: the host

    def with_held(self, held: Iterable["_Held"]) -> int:
        """What is free, with what these processes have of it."""
        inside = [one.bytes for one in held if self.group is None or self.group in one.groups]
        return self.free + min(self.used, sum(inside))


@dataclass(frozen=True, slots=True)
class _Held:
    """What a process has, as far as it is believed."""

    bytes: int
    groups: frozenset[Path]             # that it is in, as far as we see them


def total() -> int:
    """Bytes of memory this host, or the container we are in, may use."""
    return min(room.total for room in _rooms())


def free() -> int:
    """Bytes that could be taken without driving anybody into swap, now."""
    return min(room.free for room in _rooms())


def safe_budget(held: Mapping[int, int] | None = None) -> int:
    """Bytes that may be taken when nobody said how many, with what is taken already.

    `held`: how much of it processes say they have, by process id.
    """
    before = _rooms()
    known = [
        _Held(min(size, private(pid)), frozenset(
            group.folder for group in cgroup.chain(process(pid, "cgroup"))))
        for pid, size in (held or {}).items()
    ]
    # What came or went meanwhile is either free or held at one moment, and never both at both.
    rooms = (*before, *_rooms()) if known else before
    return int(SAFE_SHARE * min(room.with_held(known) for room in rooms))


def _rooms() -> list[_Room]:
    """The host, and the groups from ours up to the root that have a limit."""
    host = _sizes(MEMINFO.read_text(encoding="ascii"))
    return [_Room(host["MemTotal"], host["MemAvailable"], host["AnonPages"]), *_limited()]


def _limited() -> list[_Room]:
    limits = [(g, g.limit()) for g in cgroup.chain(kernel_text(CGROUP))]
    return [
        _Room(limit.size, limit.free, limit.used, group.folder)
        for group, limit in limits if limit is not None
    ]


def private(pid: int) -> int:
    """Bytes of memory that is the process's own; 0 where we cannot see it."""
    return _sizes(process(pid, "status")).get("RssAnon", 0)


def started(pid: int) -> int | None:
    """When a process was started, in ticks since boot; None if there is no such process."""
    # Its name stands in parentheses and may have any of the characters that part fields.
    fields = process(pid, "stat").rpartition(")")[2].split()
    return int(fields[START_FIELD]) if len(fields) > START_FIELD else None


def process(pid: int, name: str) -> str:
    """A file of a process that may have ended, or may live where we cannot see it: ""."""
    try:
        return kernel_text(PROCESSES / str(pid) / name)
    except OSError:
        return ""


def kernel_text(path: Path) -> str:
    """A file that may have names of users' choice in it, each byte as it is.

    Path.read_text() would take a carriage return in a name for the end of a line.
    """
    return os.fsdecode(path.read_bytes())


def _sizes(text: str) -> dict[str, int]:
    """Bytes by name, of the lines that have them in kB. A process chooses its own name."""
    lines = [line.replace(":", " ", 1).split() for line in text.split("\n")]
    return {
        line[0]: int(line[1]) << 10
        for line in lines if len(line) == 3 and line[1].isdecimal() and line[2] == "kB"
    }
