# SPDX-License-Identifier: Apache-2.0
"""Control groups (versions 1 and 2): the groups of a process, and the memory that they leave it.

Memory evicted from the card is locked, so limits of swap are ignored, and memory.high counts like
memory.max, as the kernel would throttle the program. Page cache of files counts as free."""

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from stat import S_IWGRP, S_IWOTH
from typing import NamedTuple

from nvshared.machine.tenant import DEPTH, OTHERS, lines

ROOT = Path("/sys/fs/cgroup")
MOUNTINFO = Path("/proc/self/mountinfo")
ESCAPED = re.compile(r"\\([0-7]{3})")   # mountinfo's escape of a blank or another separator
TITLE = re.compile(rb"slurmstepd: \[([0-9]+)\.")
STEPS_MOST = 16                         # most steps of a SLURM job, and processes of a step, read
NO_LIMIT = 1 << 60                      # bytes: more is no limit (version 1; version 2: "max")

# Pairs of files: a limit, and the usage that counts against that limit.
UNIFIED = (("memory.max", "memory.current"), ("memory.high", "memory.current"))
MEMORY = (
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"),     # memory plus swap
)

Membership = tuple[str, str]            # controllers and path of a line in /proc/PID/cgroup


class Limit(NamedTuple):
    """The tightest limit of a group, or the size of the host; bytes."""

    file: Path                          # the kernel's file that has the limit
    size: int
    free: int                           # bytes that could be allocated without swapping
    used: int                           # bytes of the group's processes, without page cache


class Group(NamedTuple):
    folder: Path
    controllers: str                    # controllers of the group's hierarchy; "": version 2

    def limit(self) -> Limit | None:
        """The tightest memory limit of this group; None: it has no limit, or was removed."""
        pairs = MEMORY if self.controllers else UNIFIED
        found = [(size, used, self.folder / most) for most, taken in pairs
                 if (size := _number(self.folder / most)) is not None
                 and (used := _number(self.folder / taken)) is not None]
        if not found:
            return None
        files = _files(self.folder / "memory.stat", "total_" if self.controllers else "")
        size, used, file = min(found, key=lambda one: one[0] - one[1])
        used = max(0, used - files)
        return Limit(file, size, max(0, size - used), used)


def memberships(text: str) -> list[Membership]:
    """The groups named in /proc/PID/cgroup, of the hierarchies that may limit memory."""
    return [(c, path) for c, path in lines(text) if c == "" or "memory" in c.split(",")]


def owner(controllers: str, path: str) -> int | None:
    """The uid of a group's owner; OTHERS: others may create groups below; None: not visible."""
    located = _directory(controllers, path)
    if located is None:
        return None
    try:
        found = located[1].stat()
    except (OSError, ValueError):
        return None
    return OTHERS if found.st_mode & (S_IWGRP | S_IWOTH) else found.st_uid


def slurm_job(controllers: str, path: str) -> str:
    """The number of this group's SLURM job, from the title of a step's slurmstepd; "": none."""
    located = _directory(controllers, path)
    steps = sorted(located[1].glob("step_*/slurm*")) if located is not None else []
    for step in steps[:STEPS_MOST]:
        try:
            pids = (step / "cgroup.procs").read_bytes().split()[:STEPS_MOST]
            trusted = step.stat().st_uid == 0
        except OSError:
            continue
        for pid in map(int, pids if trusted else ()):
            process = Path(f"/proc/{pid}")
            try:
                with (process / "cmdline").open("rb") as file:
                    title = TITLE.match(file.read(256))
                if title and process.stat().st_uid == 0:
                    return title[1].decode()
            except OSError:
                continue
    return ""


def chain(text: str) -> tuple[Group, ...]:
    """The groups named in /proc/PID/cgroup, and all above them, the innermost first.

    Groups that are not visible are missing, and so are groups deeper than DEPTH."""
    groups: list[Group] = []
    for controllers, path in memberships(text):
        located = _directory(controllers, path)
        if located is None:
            continue
        start, folder = located
        names = folder.parts[len(start.parts):]
        groups += (
            Group(start.joinpath(*names[:number]), controllers)
            for number in range(len(names), -1, -1))
    return tuple(groups)


def mount_point(controllers: str) -> Path:
    """The usual mount point of a hierarchy. Version 2 has its own directory beside version 1."""
    if controllers:
        return ROOT / ("memory" if "memory" in controllers.split(",") else
                       controllers.removeprefix("name="))
    beside = ROOT / "unified"
    return beside if (beside / "cgroup.controllers").exists() else ROOT


def has_hidden_ancestors(text: str) -> bool:
    """Whether the daemon cannot read an ancestor of its groups. `text`: /proc/self/cgroup."""
    for controllers, path in memberships(text):
        start, ours = _visible_top(controllers)
        if controllers:
            hidden = not (start / path.lstrip("/")).exists()
        else:
            hidden = (start / "cgroup.events").exists()     # the root group lacks this file
        if ours is None or (not ours and hidden):
            return True
    return False


def _directory(controllers: str, path: str) -> tuple[Path, Path] | None:
    """The visible top of a hierarchy, and the directory of a group; None: not visible."""
    names = [name for name in path.split("/") if name not in ("", "..")][:DEPTH]
    out = path.split("/").count("..")
    start, ours = _visible_top(controllers)
    if ours is None or out > len(ours):
        return None
    return start, start.joinpath(*ours[:len(ours) - out], *names)


@cache
def _visible_top(controllers: str) -> tuple[Path, tuple[str, ...] | None]:
    """The highest visible group of a hierarchy, and the path from there to the namespace's root.

    Paths in /proc/PID/cgroup begin at the root of the daemon's control group namespace. A container
    may have a mount of the host's hierarchy. Its root in /proc/self/mountinfo (/../../..) tells
    how many levels higher it begins. The inode of the namespace's root then finds the names
    between. None: the namespace's root is not found."""
    found = _mounted(controllers)
    above = {point: root.count("..") for root, point in found if not root.strip("/.")}
    begin = max(above, key=lambda point: above[point], default=None)
    usual = mount_point(controllers)
    if begin is None or not above[begin]:
        return (usual if begin is None or usual in above else begin), ()
    try:
        own = next(point.stat().st_ino for point, number in above.items() if not number)
        for entry in _folders(begin, above[begin]):
            if entry.inode() == own:
                return begin, Path(entry).relative_to(begin).parts
    except (OSError, StopIteration):
        pass
    return (begin, None) if above.get(usual) else (usual, ())


def _folders(folder: Path, deep: int) -> Iterator["os.DirEntry[str]"]:
    with os.scandir(folder) as found:
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                if deep == 1:
                    yield entry
                else:
                    yield from _folders(Path(entry), deep - 1)


def _mounted(controllers: str) -> list[tuple[str, Path]]:
    """For each mount of a hierarchy, its root in the hierarchy, and its mount point."""
    found = []
    for (_, _, _, root, point, *_), kind, options in mounts():
        wanted = {*controllers.split(",")} <= {*options.split(",")} if controllers else True
        if kind == ("cgroup" if controllers else "cgroup2") and wanted:
            found.append((root, Path(ESCAPED.sub(lambda one: chr(int(one[1], 8)), point))))
    return found


def mounts() -> Iterator[tuple[list[str], str, str]]:
    """For each line of /proc/self/mountinfo, the fields up to " - ", the type, and the options of
    the file system."""
    for line in os.fsdecode(MOUNTINFO.read_bytes()).split("\n"):
        before, _, after = line.partition(" - ")
        if after:
            kind, _, options = after.split(" ")[:3]
            yield before.split(" "), kind, options


def _files(path: Path, prefix: str) -> int:
    """The page cache in a memory.stat; `prefix` (version 1: total_) adds child groups. Bytes."""
    try:
        figures = [line.partition(" ") for line in path.read_text(encoding="ascii").split("\n")]
    except OSError:
        return 0
    names = (f"{prefix}inactive_file", f"{prefix}active_file")
    return sum(int(size) for name, _, size in figures if name in names)


def _number(path: Path) -> int | None:
    """The bytes in a file of limits or usage; None: there is no such file, or no limit."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < NO_LIMIT else None
