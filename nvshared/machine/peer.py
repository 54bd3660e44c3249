# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a socket, as the kernel says, never as the peer says."""

import errno
import os
import select
import socket
import struct
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from nvshared.machine import cgroup as control_groups
from nvshared.machine import host, subordinate, tenant
from nvshared.machine.tenant import Kind, Tenant, is_unnumbered, locate, tenants

SO_PEERPIDFD = 77                       # which socket has no name for: its process, by descriptor
CREDENTIALS = struct.Struct("iII")      # struct ucred of socket(7): pid, uid, gid
COMM_LONGEST = 15                       # bytes of /proc/PID/comm
WORDS_WITH_NAME = 3                     # of a command line, which may begin with an interpreter

NOBODY = (1 << 32) - 1                  # as the kernel has it: no user

CGROUPS_LONGEST = 1 << 14               # bytes; a line for each controller of cgroup v1
ENVIRONMENT_LONGEST = 1 << 17


@dataclass(frozen=True, slots=True)
class Peer:
    """A process, as seen from the daemon's own pid namespace."""

    pid: int                            # 0 when it lives in a namespace we cannot see into
    uid: int
    owner: int                          # the user whom this id is lent to, or the same id
    name: str                           # /proc/PID/comm; whole_name() finds what is cut off
    tenants: tuple[Tenant, ...]         # its user, and besides what it is in, if anything
    is_contained: bool = False          # in a container: its root is not the host's root
    started: int | None = None          # in ticks since boot; None: it had died
    strange: tuple[str, ...] = ()       # paths of its control groups that are not understood
    groups: frozenset[str] | None = None    # of its user; None: nobody has asked
    title: str = ""                     # what it calls itself (NVSHARE_NAME): its own word
    gang: str = ""                      # alike for its user's programs that are to run together
    gang_size: int = 0                  # (NVSHARE_GANG), and how many they are; 0: nobody knows

    @property
    def user(self) -> str:
        """The name of its user, or the number where that has none."""
        return self.tenants[0].name

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
        """Its user, pod or container, which answers for what it takes; "": the host's root."""
        if _is_of_the_systems_container(self.tenant):
            return str(self.tenant)
        return f"user:{self.owner}" if self.owner or self.is_contained else ""

    def is_of(self, uid: int) -> bool:
        """Whether it is a program of this user of the host; a container's users are others."""
        return uid in (self.uid, self.owner) and not _is_of_the_systems_container(self.tenant)

    def __str__(self) -> str:
        return f"{self.name}[{self.pid}]"


class Credentials(NamedTuple):
    """Of the process that connected."""

    pid: int
    uid: int


def credentials(connection: socket.socket) -> Credentials:
    """One question to the kernel, which answers at once."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, _ = CREDENTIALS.unpack(raw)
    return Credentials(pid, uid)


def identify(pid: int, uid: int, *, grouped: bool = False) -> Peer:
    """By what /proc and the list of users say of a process; of a dead one, its user at most.

    `grouped`: asks for its user's groups.

    May block (nvshared/lanes.py), but not on memory of the process: only where root let SLURM
    make a job's folder without a number is the environment read.
    """
    called = name(pid)
    started = host.started(pid)
    owner = subordinate.owner(uid)
    cgroup = _read(pid, "cgroup", CGROUPS_LONGEST)
    found, puzzling = locate(cgroup, owner, own_cgroup(), _owner_of, control_groups.slurm_job)
    if is_unnumbered(found[-1]):
        environment = _read(pid, "environ", ENVIRONMENT_LONGEST)
        found = tenants(cgroup, owner, own_cgroup(), environment, _owner_of)
    contained = not cgroup or bool(puzzling) or _contained(pid)
    found = tuple(replace(one, name=printable(one.name)) for one in found)
    groups = tenant.groups(found[0].name) if grouped else None
    return Peer(pid, uid, owner, called, found, contained, started, puzzling, groups)


def _is_of_the_systems_container(tenant: Tenant) -> bool:
    """Where each user id is to be had for the asking, also root's."""
    return tenant.kind in (Kind.POD, Kind.CONTAINER) and not tenant.is_users_own


def shown(pid: int) -> str:
    """A process, by its name and number."""
    return f"{name(pid)}[{pid}]"


def name(pid: int) -> str:
    """What a process calls itself; "?": nobody can tell."""
    return printable(_read(pid, "comm").rstrip("\n") or "?")


def whole_name(pid: int, called: str) -> str:
    """The name of a program or script, of which the kernel keeps 15 characters alone.

    Waits for as long as the process changes its own mappings, which may be for ever.
    """
    command = _read(pid, "cmdline").replace("\0", " ").strip()
    words = (word.rpartition("/")[2] for word in command.split(" ")[:WORDS_WITH_NAME])
    return next((printable(one) for one in words if one.startswith(called)), called)


def owner(pid: int) -> int:
    """The user id of a process; NOBODY: there is none any more, or it is not to be seen."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return NOBODY


def watch(connection: socket.socket, pid: int) -> int | None:
    """A descriptor that becomes readable when the process that connected dies; None where there is
    none to be had.

    Needed because a forked child keeps its parent's socket open. Raises ProcessLookupError if the
    process is dead already; another may have its number then, and what was read of that process is
    nothing of this one. A kernel before 6.5 only says so if no other process has the number.
    """
    found: int | None
    try:
        found = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno not in (errno.ENOPROTOOPT, errno.EOPNOTSUPP):
            raise ProcessLookupError from error
        found = _open(pid)
    if found is not None:
        asked = select.poll()           # select.select() knows a thousand of them alone
        asked.register(found, select.POLLIN)
        if asked.poll(0):
            os.close(found)
            raise ProcessLookupError
    return found


def _open(pid: int) -> int | None:
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
    return len(numbers) != 1 or not users or users != own_users()


@cache
def own_cgroup() -> str:
    """What /proc says of the daemon itself, which stays where it was started."""
    return _read(os.getpid(), "cgroup", CGROUPS_LONGEST)


@cache
def own_users() -> str:
    """Which user ids there are for the daemon itself."""
    return _read(os.getpid(), "uid_map")


def _read(pid: int, name: str, longest: int = 4096) -> str:
    try:
        with (host.PROCESSES / str(pid) / name).open("rb") as file:
            return os.fsdecode(file.read(longest))  # no two names become alike
    except OSError:
        return ""
