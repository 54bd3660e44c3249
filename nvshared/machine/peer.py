# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a socket, as the kernel says, never as the peer says."""

import os
import pwd
import re
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

CREDENTIALS = struct.Struct("iII")      # struct ucred of socket(7): pid, uid, gid
COMMAND_LONGEST = 256                   # characters; a command line may be megabytes

CGROUPS_LONGEST = 1 << 14               # bytes; a line for each controller of cgroup v1
# systemd's own hierarchy under cgroup v1, then the unified one. A container has its scope in the
# first, where both are there, and may be in its runtime's service in the second.
HIERARCHIES = ("name=systemd", "")
UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?=/|$)")
# The UID of a static pod has no dashes, and a slice's name has underscores in their place.
POD = re.compile(
    r"[/-]pod([0-9a-f]{8}([-_]?)[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12})(?![0-9a-f])"
)


@dataclass(frozen=True, slots=True)
class Peer:
    """A process, as seen from the daemon's own pid namespace."""

    pid: int                            # 0 when it lives in a namespace we cannot see into
    uid: int
    name: str                           # /proc/PID/comm, 15 characters at most
    command: str                        # its arguments joined by blanks
    unit: str                           # innermost systemd unit, "" outside of any
    pod: str                            # UID of its Kubernetes pod, "" outside of any

    @property
    def user(self) -> str:
        """The name of its user, or the number where that has none."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

    def __str__(self) -> str:
        return f"{self.name}[{self.pid}]"


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Process id and user id of who connected; no more than a question to the kernel."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, _ = CREDENTIALS.unpack(raw)
    return pid, uid


def describe(pid: int, uid: int) -> Peer:
    """What /proc says about a process; of one that has died, little more than its pid."""
    name = _read(pid, "comm").rstrip("\n") or "?"
    command = _read(pid, "cmdline").replace("\0", " ").strip() or name
    cgroup = _read(pid, "cgroup", CGROUPS_LONGEST)
    pod = POD.search(cgroup)
    return Peer(
        pid=pid,
        uid=uid,
        name=printable(name),
        command=printable(command[:COMMAND_LONGEST]),
        unit=printable(_unit(cgroup)),
        pod=pod.group(1).replace("_", "-") if pod else "",
    )


def watch(pid: int) -> int | None:
    """A descriptor that becomes readable when the process dies; None where there is none to be had.

    Needed because a forked child keeps its parent's socket open. Raises
    ProcessLookupError if the process is dead already.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def printable(text: str) -> str:
    """A process chooses its own name; it must not choose what a terminal or a log line does."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _unit(cgroup: str) -> str:
    """The innermost one in the lines ID:CONTROLLERS:PATH of cgroups(7)."""
    lines = [line.split(":", 2)[1:] for line in cgroup.splitlines() if line.count(":") > 1]
    for hierarchy in HIERARCHIES:
        for controllers, path in lines:
            if controllers == hierarchy and (units := UNIT.findall(path)):
                return str(units[-1])
    return ""


def _read(pid: int, name: str, longest: int = 4096) -> str:
    try:
        with Path(f"/proc/{pid}/{name}").open("rb") as file:
            return file.read(longest).decode(errors="replace")
    except OSError:
        return ""
