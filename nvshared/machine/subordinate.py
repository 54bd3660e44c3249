# SPDX-License-Identifier: Apache-2.0
"""The users to which /etc/subuid assigns subordinate user ids, for rootless containers.

All ids of a range count as its user. In ranges of root or of a system user, for containers that
root runs, each id counts as a user of its own."""

import os
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from nvshared.kept import read_regular
from nvshared.machine import users

FILE = Path("/etc/subuid")
LINE = re.compile(r"([^:\0]+):([0-9]{1,10}):([0-9]{1,10})")    # user, first id, number of ids
SYSTEM_LAST = 999                       # SYS_UID_MAX of login.defs(5)
MOST = 16                               # ranges of an id that count, the first in the file
CONTAINERS = "containers"               # podman's name for ranges of root's; often no user has it

Range = tuple[str, int, int]            # name or number of the user, first user id, number of ids


def owner(uid: int, number: Callable[[str], int | None] = users.number) -> int:
    """The user to whom a subordinate user id is assigned; any other user id itself.

    `number`: the number of the user with a name; the default may block. While it is unknown, the
    whole range counts as the user of its first id, lest one user become thousands meanwhile."""
    for name, first, _ in _of(uid):
        if name != CONTAINERS:
            found = int(name) if name.isdecimal() else number(name)
            if found is None:
                return first
            if found > SYSTEM_LAST:
                return found
    return uid


def lender(uid: int) -> int | str:
    """The user as written in the file, a name or a number; any other user id itself."""
    return next((name for name, _, _ in _of(uid)), uid)


def _of(uid: int) -> list[Range]:
    """The ranges with this id, in the order of the file."""
    try:
        now = FILE.stat()
    except OSError:
        return []
    starts, ranges = _ranges(FILE, now.st_ino, now.st_mtime_ns, now.st_size)
    return ranges[bisect_right(starts, uid) - 1] if starts and starts[0] <= uid else []


@lru_cache(maxsize=1)
def _ranges(file: Path, *_version: int) -> tuple[list[int], list[list[Range]]]:
    """The ids at which ranges begin or end, and from each on the ranges up to the next: the file
    may have thousands of users."""
    try:
        lines = os.fsdecode(read_regular(file)).split("\n")
    except OSError:
        return [], []
    found = [line.groups() for line in map(LINE.fullmatch, lines) if line]
    ranges = [
        (name, int(first), int(number)) for name, first, number in found
        if not name.isdecimal() or (len(name) <= 10 and int(name) <= users.LAST)]
    edges: dict[int, list[tuple[int, Range]]] = {}
    for number, one in enumerate(ranges):
        for edge in (one[1], one[1] + one[2]):
            edges.setdefault(edge, []).append((number, one))
    starts, here = sorted(edges), list[tuple[int, Range]]()
    there = []
    for start in starts:
        for numbered in edges[start]:
            _, first, number = numbered[1]
            if first != start:
                del here[bisect_left(here, numbered)]
            elif number:
                insort(here, numbered)
        there.append([one for _, one in here[:MOST]])
    return starts, there
