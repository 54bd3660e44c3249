# SPDX-License-Identifier: Apache-2.0
"""Tells which tenant a process belongs to: what is promised, limited and shown as one.

A tenant is a pod, a job, a container, a unit or a user, in this order: the first that a process is
in. Only what the kernel says counts, that is /proc/PID/cgroup and the user id.

A path in there is read from the root down, and the first folder that names a tenant decides. What
lies below it was made by whoever is in there, who may give it any name: the root of a container
makes folders in it, a user has a systemd of his own below user@UID.service. So what a user's
folders are called is a name within that user, and never a pod's or a job's. Runtimes that keep
others below themselves (containerd.service, slurmstepd.scope) are looked through.

A daemon that runs in a container sees what lies beside it in there. So the folders that it shares
with a process say nothing about that process.
"""

import grp
import os
import pwd
import re
from contextlib import suppress
from dataclasses import field, replace
from enum import StrEnum
from itertools import takewhile
from pathlib import PurePosixPath

from nvshared.record import dataclass


class Kind(StrEnum):
    """What a tenant is, from the most to the least telling."""

    POD = "pod"                         # of Kubernetes; its UID
    JOB = "job"                         # of SLURM; its number
    CONTAINER = "container"             # of docker, podman, LXC, nspawn: its id or name
    UNIT = "unit"                       # of systemd, of the system or of a user
    USER = "user"


@dataclass(frozen=True, slots=True)
class Tenant:
    """Processes that are treated as one; a unit or container of a user is USER/NAME."""

    kind: Kind
    name: str
    container: str = field(default="", compare=False)   # of a pod: the id of the one it is in

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def is_users_own(self) -> bool:
        """Whether a user made it, who could make any number."""
        inside = self.kind in (Kind.CONTAINER, Kind.UNIT) and "/" in self.name
        return inside or self.kind in (Kind.JOB, Kind.USER)


HEX = r"[0-9a-f]{64}"
# The UID of a static pod has no dashes, and a slice's name has underscores in their place.
POD = re.compile(
    r"(?:^|-)pod([0-9a-f]{8}([-_]?)[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12})"
    r"(?=\.slice(?:$|:)|$)"
)
JOB = re.compile(r"job_(\d+)")
CONTAINER = re.compile(
    rf"(?:(?:docker|libpod|libpod-payload|nerdctl|crio|cri-containerd)-)?({HEX})(?:\.scope)?"
    r"|lxc\.payload\.(.+)|machine-(.+)\.scope|systemd-nspawn@(.+)\.service"
)
UNIT = re.compile(r".+\.(?:service|scope)")
# What the login manager and desktops put a user's own programs in: these are the user's.
SESSION = re.compile(r"(?:session-.+|init|(?:app|vte-spawn|tmux-spawn|ptyxis-spawn)-.+)\.scope")
# Services of the system that start programs of many users: these are the users', too.
LAUNCHER = re.compile(r"(?:jupyterhub|rstudio-server|sshd?|cron|crond|anacron|atd)\.service")
MANAGER = re.compile(r"user@(\d+)\.service")
USERS = re.compile(r"user-(\d+)\.slice")
RUNTIME = re.compile(
    r"(?:containerd|docker|crio|cri-o|kubelet|k3s|k3s-agent|rke2-server|rke2-agent|podman|lxc"
    r"|lxd|incus|snap\.lxd\.daemon|slurmd)\.service|(?:.+_)?slurmstepd\.scope"
)
ESCAPED = re.compile(r"\\x([0-9a-f]{2})")


def user(uid: int) -> str:
    """The name of a user, or the number where that has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def groups(name: str) -> frozenset[str]:
    """The names of the groups that a user is in; none of one who is not known."""
    found = set()
    try:
        for number in os.getgrouplist(name, pwd.getpwnam(name).pw_gid):
            with suppress(KeyError):    # a group without a name
                found.add(grp.getgrgid(number).gr_name)
    except KeyError:
        return frozenset()
    return frozenset(found)


def tenants(cgroup: str, uid: int, own: str = "", environment: str = "") -> tuple[Tenant, ...]:
    """Those whose terms a process is under: its user, and besides what it is in, if anything.

    `cgroup` and `own` are what /proc/PID/cgroup says of the process and of the daemon,
    `environment` is /proc/PID/environ as of the start of the process.
    """
    beside = dict(_lines(own))
    found = [_of_path(path, beside.get(controllers, "")) for controllers, path in _lines(cgroup)]
    known = [one for one in found if one is not None]
    best = min(known, key=lambda one: list(Kind).index(one.kind), default=None)
    if best is not None and best.kind is Kind.UNIT and best.name == "slurmd.service":
        job = re.search(r"(?:^|\0)SLURM_JOB_ID=(\d+)\0", environment)
        best = Tenant(Kind.JOB, job[1]) if job else best
    whole = Tenant(Kind.USER, user(uid))
    return (whole,) if best is None else (whole, best)


def fellows(tenant: Tenant, uid: int, *, contained: bool) -> str:
    """Alike for processes of which each may see the memory of the other; "": it is alone.

    That is, those of one user, and outside of containers or in the same pod, container or unit of
    the system. `contained`: it has namespaces of its own, as in containers that nobody knows of.
    """
    if tenant.kind in (Kind.POD, Kind.CONTAINER):
        return f"{tenant} {uid}"
    if contained:
        return ""
    return f"{Kind.USER if tenant.is_users_own else tenant} {uid}"


def _lines(cgroup: str) -> list[tuple[str, str]]:
    """Controllers and path of each line ID:CONTROLLERS:PATH of cgroups(7)."""
    parts = [line.split(":", 2) for line in cgroup.splitlines()]
    return [(part[1], part[2]) for part in parts if len(part) == 3]


def _of_path(path: str, beside: str) -> Tenant | None:
    """None: it is in nothing but its user's sessions, or was started for that user."""
    folders = [folder for folder in PurePosixPath(path).parts[1:] if folder != ".."]
    alike = zip(folders, PurePosixPath(beside).parts[1:], strict=False)
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], alike)))
    owner = ""                          # USER/ where that user's own systemd made what follows
    runtime: Tenant | None = None
    for number, folder in enumerate(folders):
        if match := USERS.fullmatch(folder) or MANAGER.fullmatch(folder):
            owner = f"{user(int(match[1]))}/"
        elif number < shared:
            continue
        elif not owner and (trusted := _of_the_system(folder, folders[:number])):
            return replace(trusted, container=_container(folders[number:]))
        elif match := CONTAINER.fullmatch(folder):
            return Tenant(Kind.CONTAINER, owner + _plain(match))
        elif (SESSION if owner else LAUNCHER).fullmatch(folder):
            return None
        elif not owner and RUNTIME.fullmatch(folder):
            runtime = Tenant(Kind.UNIT, folder)
        elif UNIT.fullmatch(folder):
            return runtime or Tenant(Kind.UNIT, owner + folder)
    return runtime


def _of_the_system(folder: str, above: list[str]) -> Tenant | None:
    """What only root makes: a pod, a job, a container of LXC."""
    kubernetes = any("kubepods" in name for name in (folder, *above))
    if kubernetes and (match := POD.search(folder)):
        return Tenant(Kind.POD, match[1].replace("_", "-"))
    if any("slurm" in name for name in above) and (match := JOB.fullmatch(folder)):
        return Tenant(Kind.JOB, match[1])
    return Tenant(Kind.CONTAINER, folder) if above[-1:] == ["lxc"] else None


def _container(folders: list[str]) -> str:
    """The id of a pod's container from what lies below the pod; "" for its own first process."""
    inside = map(CONTAINER.fullmatch, re.split(r":[a-z-]+:|/", "/".join(folders)))
    return next((match[1] for match in inside if match and match[1]), "")


def _plain(match: re.Match[str]) -> str:
    """A container's id or name, without what systemd puts in the place of other characters."""
    name = next(group for group in match.groups() if group)
    return ESCAPED.sub(lambda one: chr(int(one[1], 16)), name)
