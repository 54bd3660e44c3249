# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a socket, as the kernel says, never as the peer says."""

import os
import socket
import struct
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from nvshared.machine import cgroup as control_groups
from nvshared.machine import subordinate, tenant
from nvshared.machine.tenant import Tenant, fellows, tenants
from nvshared.record import dataclass

CREDENTIALS = struct.Struct("iII")      # struct ucred of socket(7): pid, uid, gid
COMMAND_LONGEST = 256                   # characters; a command line may be megabytes

NOBODY = (1 << 32) - 1                  # as the kernel has it: no user

CGROUPS_LONGEST = 1 << 14               # bytes; a line for each controller of cgroup v1
ENVIRONMENT_LONGEST = 1 << 17


@dataclass(frozen=True, slots=True)
class Peer:
    """A process, as seen from the daemon's own pid namespace."""

    pid: int                            # 0 when it lives in a namespace we cannot see into
    uid: int
    owner: int                          # the user whom this id is lent to, or the same id
    name: str                           # /proc/PID/comm, 15 characters at most
    command: str                        # its arguments joined by blanks
    tenants: tuple[Tenant, ...]         # its user, and besides what it is in, if anything
    fellows: str = ""                   # alike for those who may see each other's memory
    title: str = ""                     # what it calls itself (NVSHARE_NAME): its own word
    gang: str = ""                      # alike for its user's programs that are to run together
    gang_size: int = 0                  # (NVSHARE_GANG), and how many they are; 0: nobody knows

    @property
    def user(self) -> str:
        """The name of its user, or the number where that has none."""
        return tenant.user(self.uid)

    @property
    def tenant(self) -> Tenant:
        """The one that tells most of it."""
        return self.tenants[-1]

    @property
    def sharers(self) -> tuple[Tenant, ...]:
        """The same, from the outermost in: whose share of the time it has a part of comes first.

        What users make is theirs. In anything else, who is root chooses what user to be.
        """
        return self.tenants if self.tenant.is_users_own else self.tenants[::-1]

    @property
    def account(self) -> str:
        """Whose its memory is, see scheduler/belief.py: its user's; or "", nobody's, if root's."""
        return f"user:{self.owner}" if self.owner else ""

    def __str__(self) -> str:
        return f"{self.name}[{self.pid}]"


class Credentials(NamedTuple):
    """Who connected."""

    pid: int
    uid: int
    owner: int


def credentials(connection: socket.socket) -> Credentials:
    """No more than two questions to the kernel."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, _ = CREDENTIALS.unpack(raw)
    return Credentials(pid, uid, subordinate.owner(uid))


def describe(pid: int, uid: int, owner: int) -> Peer:
    """What /proc says about a process; of one that has died, little more than its pid."""
    called = name(pid)
    command = _read(pid, "cmdline").replace("\0", " ").strip() or called
    cgroup = _read(pid, "cgroup", CGROUPS_LONGEST)
    environment = _read(pid, "environ", ENVIRONMENT_LONGEST) if "slurmd" in cgroup else ""
    found = tenants(cgroup, owner, own_cgroup(), environment, _owner_of)
    return Peer(
        pid=pid,
        uid=uid,
        owner=owner,
        name=called,
        command=printable(command[:COMMAND_LONGEST]),
        tenants=tuple(replace(one, name=printable(one.name)) for one in found),
        fellows=fellows(found[-1], uid, contained=_contained(pid)),
    )


def shown(pid: int) -> str:
    """A process, by its name and number."""
    return f"{name(pid)}[{pid}]"


def name(pid: int) -> str:
    """What a process calls itself; "?": nobody can tell."""
    return printable(_read(pid, "comm").rstrip("\n") or "?")


def owner(pid: int) -> int:
    """The user id of a process; NOBODY: there is none any more, or it is not to be seen."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return NOBODY


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


def _owner_of(controllers: str, path: str) -> int | None:
    """Whose a control group is; of an id that is lent to a user, that user."""
    found = control_groups.owner(controllers, path)
    return found if found is None or found == tenant.OTHERS else subordinate.owner(found)


def _contained(pid: int) -> bool:
    """It sees other processes or users than we do, or nobody can tell."""
    # The first line is its name, in which the kernel replaces no end of a line but this.
    status = _read(pid, "status").split("\n")
    numbers = next((line.split()[1:] for line in status if line.startswith("NSpid:")), [])
    users = _read(pid, "uid_map")
    return len(numbers) != 1 or not users or users != _read(os.getpid(), "uid_map")


@cache
def own_cgroup() -> str:
    """What /proc says of the daemon itself, which stays where it was started."""
    return _read(os.getpid(), "cgroup", CGROUPS_LONGEST)


def _read(pid: int, name: str, longest: int = 4096) -> str:
    try:
        with Path(f"/proc/{pid}/{name}").open("rb") as file:
            return os.fsdecode(file.read(longest))  # no two names become alike
    except OSError:
        return ""
