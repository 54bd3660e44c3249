# SPDX-License-Identifier: Apache-2.0
"""Identifies the process at the other end of a socket, by information from the kernel only."""

import errno
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from nvshared import caller
from nvshared.machine import cgroup as control_groups
from nvshared.machine import host, subordinate, tenant, users
from nvshared.machine.tenant import Kind, Tenant, locate

WORDS_WITH_NAME = 3                     # first arguments of a command, searched for its name

NOBODY = (1 << 32) - 1                  # the kernel's value for no user

COMMAND_LONGEST = 1 << 12               # most bytes read from /proc/PID/cmdline
FILE_LONGEST = 1 << 14                  # most bytes read from /proc/PID/cgroup or uid_map
ENVIRONMENT_LONGEST = 1 << 17           # most bytes read from /proc/PID/environ


@dataclass(frozen=True, slots=True)
class Peer:
    """A process, as seen from the daemon's pid namespace."""

    pid: int                            # 0: the process is in a pid namespace that is not visible
    uid: int
    owner: int                          # the user of a subordinate `uid`, else `uid`
    name: str                           # /proc/PID/comm, 15 characters; see whole_name()
    tenants: tuple[Tenant, ...]         # its user, then its pod, job, container or unit
    is_contained: bool = False          # may be in a container, where uid 0 is not the host's root
    started: int | None = None          # start time in ticks since boot; None: it had ended
    unknown_paths: tuple[str, ...] = ()     # cgroups that name no known kind of tenant
    title: str = ""                     # NVSHARE_NAME; set by the program
    gang: str = ""                      # NVSHARE_GANG; the same in all processes of a gang
    gang_size: int = 0                  # number of the gang's processes; 0: unknown

    @classmethod
    def unknown(cls, pid: int, uid: int) -> "Peer":
        return cls(pid, uid, uid, "?", (Tenant(Kind.USER, str(uid)),), is_contained=True)

    @property
    def tenant(self) -> Tenant:
        return self.tenants[-1]

    @property
    def sharers(self) -> tuple[Tenant, ...]:
        """The process's tenants, the outermost first: each has a share of the previous one's time.

        A tenant that a user created is inside the user; in a container of the system, root chooses
        user ids, so there the user is inside the tenant."""
        return self.tenants if self.tenant.is_users_own else self.tenants[::-1]

    @property
    def account(self) -> str:
        """The user, pod or container to which the process's use is charged; "": the host's root."""
        if _is_of_the_systems_container(self.tenant):
            return str(self.tenant)
        return f"user:{self.owner}" if self.owner or self.is_contained else ""

    @property
    def has_assigned_gpu(self) -> bool:
        """Whether another program has assigned it its GPU: it may be unable to open another."""
        return self.is_contained or self.tenant.kind in (Kind.POD, Kind.JOB, Kind.CONTAINER)

    def is_of(self, uid: int) -> bool:
        """Whether this user of the host runs the process; an equal uid in a container does not."""
        return uid in (self.uid, self.owner) and not _is_of_the_systems_container(self.tenant)

    def __str__(self) -> str:
        return f"{self.name}[{self.pid}]"


def identify(
    pid: int, uid: int, number: Callable[[str], int | None] = users.number
) -> Peer:
    """Identifies a process by /proc and its user's number; an ended process only by its user.

    `number`: the number of a user in /etc/subuid, if known; the default may block. The rest may
    block, too (nvshared/lanes.py), but not on the process's memory, except for a SLURM job with its
    number only in the environment."""
    called = name(pid)
    started = host.started(pid)
    owner = subordinate.owner(uid, number)
    cgroup = host.process(pid, "cgroup", FILE_LONGEST)
    found, unknown_paths = locate(cgroup, owner, own("cgroup"), partial(_owner_of, number),
                                  control_groups.slurm_job,
                                  lambda: host.process(pid, "environ", ENVIRONMENT_LONGEST))
    contained = not cgroup or bool(unknown_paths) or _contained(pid)
    found = tuple(replace(one, name=printable(one.name)) for one in found)
    return Peer(pid, uid, owner, called, found, contained, started, unknown_paths)


def _is_of_the_systems_container(tenant: Tenant) -> bool:
    """Whether root inside the tenant can choose any user id."""
    return tenant.kind in (Kind.POD, Kind.CONTAINER) and not tenant.is_users_own


def shown(pid: int) -> str:
    return f"{name(pid)}[{pid}]"


def name(pid: int) -> str:
    """The name of a process; "?": unknown."""
    return printable(host.process(pid, "comm").rstrip("\n") or "?")


def whole_name(pid: int, called: str) -> str:
    """The full name of a program; `called`: the 15 characters that the kernel keeps.

    Blocks while the process changes its own mappings, possibly for ever."""
    command = host.process(pid, "cmdline", COMMAND_LONGEST).replace("\0", " ").strip()
    words = (word.rpartition("/")[2] for word in command.split(" ")[:WORDS_WITH_NAME])
    return next((printable(one) for one in words if one.startswith(called)), called)


def owner(pid: int) -> int:
    """The user id of a process; NOBODY: the process has ended, or is not visible."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return NOBODY


OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def watch(connection: socket.socket, pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None if the kernel provides none.

    A forked child keeps its parent's socket open. Raises ProcessLookupError if the process has
    ended, as its id may have been reused; kernels before 6.5 detect that only while no process has
    the id. Raises OSError with a number of OUT_OF_RESOURCES."""
    found: int | None
    try:
        found = connection.getsockopt(socket.SOL_SOCKET, caller.SO_PEERPIDFD)
    except OSError as error:
        if error.errno in OUT_OF_RESOURCES:
            raise
        if error.errno not in (errno.ENOPROTOOPT, errno.EOPNOTSUPP):
            raise ProcessLookupError from error
        try:
            found = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except OSError:
            return None
    if caller.has_ended(found):
        os.close(found)
        raise ProcessLookupError
    return found


def printable(text: str) -> str:
    """Replaces control characters: a process chooses its own name, which is shown on terminals."""
    return text if text.isprintable() else (
        "".join(c if c.isprintable() else "?" for c in text))


def _owner_of(number: Callable[[str], int | None], controllers: str, path: str) -> int | None:
    """The owner of a control group; for a subordinate id, the user to which that id belongs."""
    found = control_groups.owner(controllers, path)
    if found is None or found == tenant.OTHERS:
        return found
    return subordinate.owner(found, number)


def _contained(pid: int) -> bool:
    """Whether a process is, or may be, in another pid or user namespace than the daemon."""
    # The Name line may contain any line break except the newline, which the kernel escapes.
    status = host.process(pid, "status").split("\n")
    numbers = next((line.split()[1:] for line in status if line.startswith("NSpid:")), [])
    users = host.process(pid, "uid_map", FILE_LONGEST)
    return len(numbers) != 1 or not users or users != own("uid_map")


@cache
def own(name: str) -> str:
    return host.process(os.getpid(), name, FILE_LONGEST)
