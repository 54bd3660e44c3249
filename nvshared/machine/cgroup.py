# SPDX-License-Identifier: Apache-2.0
"""Control groups: which of them a process is in, and what their limits of memory still leave it.

A process may take no more than the tightest leaves, of its own group and of all above that.
Version 1 and version 2 of the kernel's interface are read, also side by side.

What leaves the card is memory that nobody can swap. So memory.high counts as memory.max does: the
kernel would slow the program down until that memory is gone. What a group may swap does not count.
The kernel takes files that it keeps in memory away before it kills anybody, so they count as free.
"""

import re
from pathlib import Path, PurePosixPath
from stat import S_IWGRP, S_IWOTH

from nvshared.machine.tenant import OTHERS
from nvshared.record import dataclass

ROOT = Path("/sys/fs/cgroup")
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
    path: str                           # in it

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
    if ".." in path.split("/"):
        return None
    try:
        found = (_top(controllers, ROOT) / path.lstrip("/")).stat()
    except (OSError, ValueError):
        return None
    return OTHERS if found.st_mode & (S_IWGRP | S_IWOTH) else found.st_uid


def slurm_job(controllers: str, path: str) -> str:
    """The number of the job of SLURM whose group this is; "": it is not to be found.

    Each step has a group where only slurmstepd is, as root, and says it in its title.
    """
    if ".." in path.split("/"):
        return ""
    steps = sorted((_top(controllers, ROOT) / path.lstrip("/")).glob("step_*/slurm*"))
    for step in steps[:STEPS_MOST]:
        try:
            pids = (step / "cgroup.procs").read_bytes().split()[:STEPS_MOST]
        except OSError:
            continue
        for pid in map(int, pids if step.stat().st_uid == 0 else ()):
            title = Path(f"/proc/{pid}")
            try:
                if title.stat().st_uid == 0 and (found := TITLE.match(_head(title / "cmdline"))):
                    return found[1].decode()
            except OSError:
                continue
    return ""


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(256)


def chain(text: str, root: Path | None = None) -> tuple[Group, ...]:
    """The groups that /proc/PID/cgroup names, and all above them, the innermost first."""
    groups: list[Group] = []
    for controllers, path in memberships(text):
        if ".." in PurePosixPath(path).parts:
            continue                    # outside of what we can see
        top = _top(controllers, root or ROOT)
        folder = top / path.lstrip("/")
        while folder.is_relative_to(top):
            groups.append(Group(folder, controllers, f"/{folder.relative_to(top)}"))
            folder = folder.parent
    return tuple(groups)


def _top(controllers: str, root: Path) -> Path:
    """Where a hierarchy is mounted. Version 2 has a folder of its own beside version 1."""
    if controllers:
        return root / ("memory" if "memory" in controllers.split(",") else
                       controllers.removeprefix("name="))
    beside = root / "unified"
    return beside if (beside / "cgroup.controllers").exists() else root


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
