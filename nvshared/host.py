# SPDX-License-Identifier: Apache-2.0
"""How much host memory may be taken for what does not fit on the cards.

What is swapped out cannot be swapped out again: it is locked, because the
card's copy engines read and write it. So the budget is derived from what is
really free, and the rest is left to everybody else.
"""

from pathlib import Path

SAFE_SHARE = 0.8                        # of what is free at start

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")


def total() -> int:
    """Bytes of memory this host, or the container we are in, may use."""
    limits = [limit for limit, _ in _cgroup_limits()]
    return min([_meminfo("MemTotal"), *limits])


def free() -> int:
    """Bytes that could be taken without driving anybody into swap, now."""
    left = [max(0, limit - used) for limit, used in _cgroup_limits()]
    return min([_meminfo("MemAvailable"), *left])


def safe_budget() -> int:
    """Bytes that may be taken when nobody said how many."""
    return int(SAFE_SHARE * free())


def _meminfo(name: str) -> int:
    for line in MEMINFO.read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) << 10
    raise LookupError(f"{MEMINFO} has no {name}")


def _cgroup_limits() -> list[tuple[int, int]]:
    """(limit, used) in bytes, of the cgroups from ours up to the root that have a limit."""
    found = []
    for line in CGROUP.read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, limit, used = CGROUP_ROOT, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            folder = CGROUP_ROOT / "memory"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        ours = folder / path.lstrip("/")
        while ours.is_relative_to(folder):
            pair = (_number(ours / limit), _number(ours / used))
            if pair[0] is not None and pair[1] is not None:
                found.append((pair[0], pair[1]))
            ours = ours.parent
    return found


def _number(path: Path) -> int | None:
    """None where there is no such file, or it says "max"."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
