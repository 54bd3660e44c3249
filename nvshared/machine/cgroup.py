# SPDX-License-Identifier: Apache-2.0
"""Control groups: which of them a process is in, and what their limits of memory still leave it.

A process may take no more than the tightest leaves, of its own group and of all above that.
Version 1 and version 2 of the kernel's interface are read, also side by side.

What leaves the card is memory that nobody can swap. So memory.high counts as memory.max does: the
kernel would slow the program down until that memory is gone. What a group may swap does not count.
The kernel takes files that it keeps in memory away before it kills anybody, so they count as free.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from stat import S_IWGRP, S_IWOTH

from nvshared.machine.tenant import DEPTH, OTHERS

STANDARD = ROOT = Path("/sys/fs/cgroup")
MOUNTINFO = Path("/proc/self/mountinfo")
ESCAPED = re.compile(r"\\([0-7]{3})")   # a blank, and what else would part fields
TITLE = re.compile(rb"slurmstepd: \[([0-9]+)\.")
STEPS_MOST = 16                         # of a job that are looked at
NO_LIMIT = 1 << 60                      # bytes; version 1 writes a number where 2 writes "max"

# A limit, and what counts against it.
UNIFIED = (("memory.max", "memory.current"), ("memory.high", "memory.current"))
MEMORY = (
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"),     # with what is swapped
)
# In memory.stat: of the group with all below it, as version 1 and version 2 call it.
FILES = frozenset({
    "total_inactive_file", "total_active_file", "inactive_file", "active_file",
})

Membership = tuple[str, str]            # controllers and path, as in /proc/PID/cgroup


@dataclass(frozen=True, slots=True)
class Limit:
    """The tightest one of a group; bytes."""

    file: Path                          # where it is written
    size: int
    free: int                           # what it leaves
    used: int                           # by the group's processes, without files


@dataclass(frozen=True, slots=True)
class Group:
    """A control group that may limit memory."""

    folder: Path
    controllers: str                    # of its hierarchy; "" for version 2

    def limit(self) -> Limit | None:
        """None: it has no limit, or is gone."""
        pairs = MEMORY if self.controllers else UNIFIED
        found: list[tuple[int, int, Path]] = []
        for most, taken in pairs:
            size = _number(self.folder / most)
            used = None if size is None else _number(self.folder / taken)
            if size is not None and used is not None:
                found.append((size, used, self.folder / most))
        if not found:
            return None
        files = _files(self.folder / "memory.stat")
        size, used, file = min(found, key=lambda one: one[0] - one[1])
        used = max(0, used - files)
        return Limit(file, size, max(0, size - used), used)


def memberships(text: str) -> list[Membership]:
    """Of /proc/PID/cgroup those that may limit memory."""
    lines = [line.split(":", 2) for line in text.split("\n") if line.count(":") > 1]
    return [(c, path) for _, c, path in lines if c == "" or "memory" in c.split(",")]


def owner(controllers: str, path: str) -> int | None:
    """The user id that a group's folder belongs to: who made it, or whom root gave it to.

    OTHERS: also those that are not its owner may make groups in there. None: not to be seen.
    """
    place = _place(controllers, path)
    if place is None:
        return None
    try:
        found = place[1].stat()
    except (OSError, ValueError):
        return None
    return OTHERS if found.st_mode & (S_IWGRP | S_IWOTH) else found.st_uid


def slurm_job(controllers: str, path: str) -> str:
    """The number of the job of SLURM whose group this is; "": it is not to be found.

    Each step has a group where only slurmstepd is, as root, and says it in its title.
    """
    place = _place(controllers, path)
    steps = sorted(place[1].glob("step_*/slurm*")) if place is not None else []
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


def chain(text: str, root: Path | None = None) -> tuple[Group, ...]:
    """The groups that /proc/PID/cgroup names, and all above them, the innermost first.

    Those that are not to be seen are missing, and so are those below the outermost DEPTH.
    """
    groups: list[Group] = []
    for controllers, path in memberships(text):
        place = _place(controllers, path, root)
        if place is None:
            continue
        start, folder = place
        names = folder.parts[len(start.parts):]
        groups += (
            Group(start.joinpath(*names[:number]), controllers)
            for number in range(len(names), -1, -1))
    return tuple(groups)


def top(controllers: str, root: Path | None = None) -> Path:
    """Where a hierarchy is mounted. Version 2 has a folder of its own beside version 1."""
    root = root or ROOT
    if controllers:
        return root / ("memory" if "memory" in controllers.split(",") else
                       controllers.removeprefix("name="))
    beside = root / "unified"
    return beside if (beside / "cgroup.controllers").exists() else root


def hides(text: str) -> bool:
    """Whether there are groups above those that we see; `text` is /proc/self/cgroup."""
    for controllers, path in memberships(text):
        if controllers:
            hidden = not (top(controllers) / path.lstrip("/")).exists()
        else:
            hidden = (top("") / "cgroup.events").exists()   # which the root of all does not have
        outside = _outside(controllers)
        if hidden if outside is None else outside[1] is None:
            return True
    return False


def _place(controllers: str, path: str, root: Path | None = None) -> tuple[Path, Path] | None:
    """Where a hierarchy begins, as far as we see it, and the folder of a group in there.

    None: the group is outside of what we see.
    """
    names = [name for name in path.split("/") if name not in ("", "..")][:DEPTH]
    out = path.split("/").count("..")
    outside = _outside(controllers) if root is None and ROOT == STANDARD else None
    if outside is None:
        start = top(controllers, root)
        return None if out else (start, start.joinpath(*names))
    start, ours = outside
    if ours is None or out > len(ours):
        return None
    return start, start.joinpath(*ours[:len(ours) - out], *names)


@cache
def _outside(controllers: str) -> tuple[Path, tuple[str, ...] | None] | None:
    """Where more of a hierarchy is mounted than at the usual place, and the way to our own there.

    In a control group namespace paths are relative to the group where it was made, and what is
    mounted in there begins at that. But the host's may be mounted in a container, too. Then
    /proc/self/mountinfo says how far above ours that begins: /../../.. What the groups between are
    called it does not say; ours is the one with the same inode number. None for the way: what is at
    the usual place begins above ours, and nobody knows where ours is.
    """
    found = _mounted(controllers)
    above = {point: root.count("..") for root, point in found if not root.strip("/.")}
    begin = max(above, key=lambda point: above[point], default=None)
    if begin is None or (not above[begin] and top(controllers) in above):
        return None
    if not above[begin]:
        return begin, ()
    try:
        own = next(point.stat().st_ino for point, number in above.items() if not number)
        for entry in _folders(begin, above[begin]):
            if entry.inode() == own:
                return begin, Path(entry).relative_to(begin).parts
    except (OSError, StopIteration):
        pass
    return (begin, None) if above.get(top(controllers)) else None


def _folders(folder: Path, deep: int) -> Iterator["os.DirEntry[str]"]:
    """Those so many levels below."""
    with os.scandir(folder) as found:
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                if deep == 1:
                    yield entry
                else:
                    yield from _folders(Path(entry), deep - 1)


def _mounted(controllers: str) -> list[tuple[str, Path]]:
    """Of each mount of a hierarchy, where in it that begins, and where it is."""
    found = []
    for line in os.fsdecode(MOUNTINFO.read_bytes()).split("\n"):
        before, _, after = line.partition(" - ")
        if not after:
            continue
        root, point = before.split(" ")[3:5]
        kind, _, options = after.split(" ")[:3]
        wanted = {*controllers.split(",")} <= {*options.split(",")} if controllers else True
        if kind == ("cgroup" if controllers else "cgroup2") and wanted:
            found.append((root, Path(ESCAPED.sub(lambda one: chr(int(one[1], 8)), point))))
    return found


def _files(path: Path) -> int:
    """Bytes of files that are kept in memory, of which the kernel can drop its copies."""
    try:
        lines = [line.split() for line in path.read_text(encoding="ascii").split("\n")]
    except OSError:
        return 0
    sizes = {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[0] in FILES}
    return max(
        sum(size for name, size in sizes.items() if name.startswith("total_")),
        sum(size for name, size in sizes.items() if not name.startswith("total_")),
    )


def _number(path: Path) -> int | None:
    """None where there is no such file, or it says that there is no limit."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < NO_LIMIT else None
