# SPDX-License-Identifier: Apache-2.0
"""nvshared where questions about an attacker are never answered.

    python -m tests.integration.hangingbox ROOT ...

A pipe that nobody writes into stands for what blocks: a lock that a program holds (cmdline),
control groups that keep the kernel busy, a directory of users that is out of reach. ROOT/proc/PID
has such pipes among the files of the attacker's processes, ROOT/groups such among the limits of
its control group, and ROOT/users is one where users are looked up. What stands between ROOT and
the options is the command as it would be.
"""

import pwd
import sys
from pathlib import Path

from nvshared import daemon
from nvshared.machine import cgroup, host

getpwuid = pwd.getpwuid


class Processes:
    """/proc, but for processes that ROOT/proc has."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __truediv__(self, pid: str) -> Path:
        mine = self._root / pid
        return mine if mine.exists() else Path("/proc") / pid


def look_up(root: Path, uid: int) -> pwd.struct_passwd:
    """A user, if the directory is not out of reach."""
    if uid and root.exists():
        root.read_bytes()
    return getpwuid(uid)


if __name__ == "__main__":
    box = Path(sys.argv[1])
    host.PROCESSES = Processes(box / "proc")        # type: ignore[assignment]
    cgroup.ROOT = box / "groups"
    pwd.getpwuid = lambda uid: look_up(box / "users", uid)
    sys.exit(daemon.main(sys.argv[sys.argv.index("nvshared") + 1:]))
