# SPDX-License-Identifier: Apache-2.0
"""The budget of host memory for swapped memory, which is locked: a part of the free memory.

Programs report swapped memory from an earlier daemon's time. As they may report anything, only
memory that the kernel confirms is added to the free memory: of a process at most its private memory
(RssAnon), of all together at most AnonPages, under a group's limit at most its processes' use."""

import os
from collections.abc import Mapping
from pathlib import Path

from nvshared.machine import cgroup
from nvshared.machine.cgroup import Limit

SAFE_SHARE = 0.8                        # part of the free memory that is the default budget

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/proc/self/cgroup")
PROCESSES = Path("/proc")
BOOT = Path("/proc/sys/kernel/random/boot_id")
THREADS_FIELD = 17                      # the same: its threads, an ended first one included
START_FIELD = 22 - 3                    # /proc/PID/stat: start time's index after the name field


def total() -> int:
    return min(limit.size for limit in _limits())


def free() -> int:
    """Bytes that could be allocated now without any swapping."""
    return min(limit.free for limit in _limits())


def safe_budget(held: Mapping[int, int] | None = None) -> int:
    """The default budget in bytes. `held`: swapped bytes that processes report, by process id."""
    before = _limits()
    confirmed = [
        (min(size, private(pid)), {group.folder for group in cgroup.chain(process(pid, "cgroup"))})
        for pid, size in (held or {}).items()]

    def available(limit: Limit) -> int:
        inside = [size for size, groups in confirmed
                  if limit.file == MEMINFO or limit.file.parent in groups]
        return limit.free + min(limit.used, sum(inside))

    # Limits are read before and after private(): memory taken or freed meanwhile counts only once.
    limits = (*before, *_limits()) if confirmed else before
    return int(SAFE_SHARE * min(map(available, limits)))


def _limits() -> list[Limit]:
    """The limits of the host, and of the daemon's control groups and their ancestors."""
    sizes = _sizes(MEMINFO.read_text(encoding="ascii"))
    host = Limit(MEMINFO, sizes["MemTotal"], sizes["MemAvailable"], sizes["AnonPages"])
    groups = [group.limit() for group in cgroup.chain(kernel_text(CGROUP))]
    return [host, *(limit for limit in groups if limit is not None)]


def private(pid: int) -> int:
    return _sizes(process(pid, "status")).get("RssAnon", 0)


def boot() -> str:
    """A text that differs at each boot."""
    return BOOT.read_text(encoding="ascii").strip()


def started(pid: int) -> int | None:
    """The start time of a process in ticks since boot; None if there is no such process."""
    # The process's name is in parentheses and may contain any separator.
    fields = process(pid, "stat").rpartition(")")[2].split()
    return int(fields[START_FIELD]) if len(fields) > START_FIELD else None


def has_ended(pid: int, started_at: int | None) -> bool:
    """Whether the process with this pid and start time has ended, or is a zombie without threads.

    False if that cannot be read. `started_at` None: the process could never be seen."""
    try:
        fields = kernel_text(PROCESSES / str(pid) / "stat").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return started_at is not None
    except OSError:
        return False
    is_zombie = fields[0] in ("Z", "X") and int(fields[THREADS_FIELD]) <= 1
    return is_zombie or started_at not in (None, int(fields[START_FIELD]))


def process(pid: int, name: str, longest: int = -1) -> str:
    """The text of /proc/PID/`name`; "" if the process has ended or is not visible.

    `longest`: most bytes to read, where the process's user chooses the length; -1: any number."""
    try:
        with (PROCESSES / str(pid) / name).open("rb") as file:
            return os.fsdecode(file.read(longest))
    except OSError:
        return ""


def kernel_text(path: Path) -> str:
    """The text of a file that may contain names chosen by users, byte for byte.

    Path.read_text() would treat a carriage return in a name as the end of a line."""
    return os.fsdecode(path.read_bytes())


def _sizes(text: str) -> dict[str, int]:
    """Bytes by name, of lines with a figure in kB. Processes choose the text of the line Name."""
    lines = [line.replace(":", " ", 1).split() for line in text.split("\n")]
    return {
        line[0]: int(line[1]) << 10
        for line in lines if len(line) == 3 and line[1].isdecimal() and line[2] == "kB"}
