# SPDX-License-Identifier: Apache-2.0
"""Finds the tenant of a process, its pod, job, container, unit or user, from its cgroup and uid.

The first directory that names a tenant decides: directories below were created inside the tenant
and may have any name. Everything below the first directory not owned by root is its owner's.
Runtimes with other tenants below themselves (containerd.service) are skipped, and so are
directories that a daemon in a container shares with its neighbours."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import takewhile


class Kind(StrEnum):
    """The kind of a tenant, from the most to the least specific."""

    POD = "pod"                         # a pod of Kubernetes, named by its UID
    JOB = "job"                         # a job; of SLURM by number, PBS by name, HTCondor by slot
    # a container of docker or podman, LXC or nspawn, by name; by id, if the name is not known
    CONTAINER = "container"
    UNIT = "unit"                       # a systemd unit of the system or of a user
    USER = "user"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant. The name of a user's own unit or container is UID/NAME, that of a user UID."""

    kind: Kind
    name: str
    # The id of a pod's container, or of one that has its name in the place of its id.
    container: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def is_users_own(self) -> bool:
        """Whether a user created the tenant, and could create any number of such tenants."""
        inside = self.kind in (Kind.CONTAINER, Kind.UNIT) and "/" in self.name
        return inside or self.kind in (Kind.JOB, Kind.USER)


HEX = r"[0-9a-f]{64}"
# The UID of a static pod has no dashes, and a slice's name has underscores in their place.
POD = re.compile(
    r"(?:^|-)pod([0-9a-f]{8}([-_]?)[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12})"
    r"(?=\.slice(?:$|:)|$)")
QUALITY = ("besteffort", "burstable")   # kubelet's directories of QoS classes; guaranteed has none
# A SLURM job's directory has its number or, since 26.05, its SLUID: 's' and 13 digits of base 32.
SLUID = re.compile(r"s[0-9A-HJKMNP-TV-Z]{13}")
# Patterns of a parent directory and of a job's directory in it; the group is the job's name.
JOBS = (
    (re.compile(r".*slurm.*|uid_[0-9]+"), re.compile(r"job_([0-9]+)")),
    (re.compile(r".*slurmstepd\.scope"), re.compile(f"({SLUID.pattern})")),
    (re.compile(r"jobid|jobs"), re.compile(r"([0-9]+(?:\[[0-9]*\])?\.[\w.-]+)")),     # of PBS
    (re.compile(r"htcondor"), re.compile(r"condor_.+_(slot[0-9]+(?:_[0-9]+)?)(?:@.+)?")),
)
BATCH = re.compile(r".*slurm.*|pbs.*\.(?:service|slice)|htcondor")
CONTAINER = re.compile(
    rf"(?:(?:docker|libpod|libpod-payload|nerdctl|crio|cri-containerd)-)?({HEX})(?:\.scope)?"
    r"|(?:lxc|incus)\.payload\.(.+)|machine-(.+)\.scope|systemd-nspawn@(.+)\.service")
# Parent directories in which each directory is a container, called by the container's name.
BOXES = re.compile(r"(?:lxc|incus)(?:\.payload)?")
UNIT = re.compile(r".+\.(?:service|scope)")
# Groups that the login manager and desktops make for a user's programs: the tenant is the user. A
# slice app-APPLICATION.slice and session.slice have services of the desktop, by XDG's convention;
# a service dbus-:1.2-NAME@0.service is a program that a message bus started.
SESSION = re.compile(
    r"(?:session-.+|init|snap\..+)\.scope|(?:app|[a-z]+-spawn)-.+\.(?:service|scope|slice)"
    r"|session\.slice|dbus-:.+@.*\.service")
# System services that start programs of users. The tenant of such a program is its user.
LAUNCHER = re.compile(r"(?:jupyterhub|rstudio-server|sshd?|cron|crond|anacron|atd)\.service")
MANAGER = re.compile(r"user@([0-9]{1,10})\.service")
USERS = re.compile(r"user-[0-9]+\.slice")
RUNTIME = re.compile(
    r"(?:containerd|docker|crio|cri-o|cri-docker|kubelet|k3s|k3s-agent|rke2-server|rke2-agent"
    r"|k0s.+|podman|lxc|lxd|incus|snap\.(?:lxd|microk8s|k8s)\..+|slurmd|pbs.*|condor)\.service"
    r"|(?:.+_)?slurmstepd\.scope")
# Directories that only root creates; used where the owners of directories are not visible.
ROOTS = re.compile(
    rf".+\.slice|kubelet|kubepods|{'|'.join(QUALITY)}|slurm.*|uid_[0-9]+|jobid|jobs|htcondor"
    rf"|{BOXES.pattern}|{RUNTIME.pattern}")
DEPTH = 32                              # most directories of a cgroup path, from its root, to read
UNKNOWN = object()                      # result for a path that names no known kind of tenant
ROOT = 0
OTHERS = -1                             # owner of a directory to which other users can write
OwnerOf = Callable[[str, str], int | None]      # uid; None: the directory is not visible
JobOf = Callable[[str, str], str]               # job number; "": not found
ESCAPED = re.compile(r"\\x([0-9a-f]{2})")


def locate(cgroup: str, uid: int, own: str, owner_of: OwnerOf, job_of: JobOf,
           environment: Callable[[], str]) -> tuple[tuple[Tenant, ...], tuple[str, ...]]:
    """The tenants of a process: its user, then its pod, job, container or unit.

    If only the user is found, also returns the cgroup paths of no known kind, for a report.
    `cgroup` and `own` are /proc/PID/cgroup of the process and of the daemon. `environment` reads
    /proc/PID/environ, which the process's user controls: used only in a directory that SLURM
    created for a job with a number that `job_of` does not find."""
    beside = dict(lines(own))
    found = [
        (path, _of_path(controllers, path, beside.get(controllers, ""), uid, owner_of, job_of))
        for controllers, path in lines(cgroup)]
    known = [one for _, one in found if isinstance(one, Tenant)]
    best = min(known, key=lambda one: list(Kind).index(one.kind), default=None)
    whole = Tenant(Kind.USER, str(uid))
    if best is None:
        return (whole,), tuple(path for path, one in found if one is UNKNOWN)
    if _is_unnumbered(best) and (
        job := re.search(r"(?:^|\0)SLURM_JOB_ID=([0-9]+)\0", environment())
    ):
        best = Tenant(Kind.JOB, job[1])
    return (whole, best), ()


def _is_unnumbered(tenant: Tenant) -> bool:
    """Whether the tenant is a SLURM job of which only the SLUID is known, not the number."""
    return tenant.kind is Kind.JOB and SLUID.fullmatch(tenant.name) is not None


def lines(cgroup: str) -> list[tuple[str, str]]:
    """Controllers and path of each line ID:CONTROLLERS:PATH of cgroups(7).

    A name may contain the line breaks at which str.splitlines() would split."""
    parts = [line.split(":", 2) for line in cgroup.split("\n")]
    return [(part[1], part[2]) for part in parts if len(part) == 3]


def _of_path(controllers: str, path: str, beside: str, uid: int, owner_of: OwnerOf,
             job_of: JobOf) -> Tenant | object | None:
    """The tenant that a path names; None: only directories of sessions; UNKNOWN: no known kind."""
    folders = [folder for folder in path.split("/") if folder not in ("", "..")][:DEPTH]
    out = "/.." * path.split("/").count("..")   # one /.. per level above the visible root
    alike = zip(folders, [one for one in beside.split("/") if one], strict=False)
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], alike)))
    unit: Tenant | None = None
    certain = True                      # root alone has created the directories so far
    for number, folder in enumerate(folders):
        above = folders[:number]
        here = "/".join([out, *folders[:number + 1]])
        manager = MANAGER.fullmatch(folder) if unit is None else None
        if number >= shared and manager is None:
            if certain and (trusted := _of_the_system(folder, above, beneath=bool(out))):
                if _is_unnumbered(trusted) and (job := job_of(controllers, here)):
                    trusted = replace(trusted, name=job)
                return replace(trusted, container=_container(folders[number:]))
            runtime = unit is not None and RUNTIME.fullmatch(unit.name)
            if (unit is None or runtime) and (match := CONTAINER.fullmatch(folder)):
                return Tenant(Kind.CONTAINER, _plain(match))
            if unit is None and _is_of_users(folder, above):
                return None
            if unit is None and UNIT.fullmatch(folder):
                unit = Tenant(Kind.UNIT, folder)
        owner = owner_of(controllers, here)
        if unit is None and (manager or owner not in (None, ROOT)):
            named = int(manager[1]) if manager else uid
            return _of_a_user(owner if owner and owner != OTHERS else named, folders[
                max(shared, number + 1):])
        if number >= shared:
            certain = certain and (owner == ROOT or bool(ROOTS.fullmatch(folder)))
        # Directory names are trusted only below directories that root owns.
        if unit is not None and (owner or not certain):
            return unit
    sliced = all(folder.endswith(".slice") for folder in folders[shared:])
    return unit or (None if sliced else UNKNOWN)


def _of_a_user(uid: int, folders: list[str]) -> Tenant | None:
    for folder in folders:
        if match := CONTAINER.fullmatch(folder):
            return Tenant(Kind.CONTAINER, f"{uid}/{_plain(match)}")
        if SESSION.fullmatch(folder):
            return None
        if UNIT.fullmatch(folder):
            return Tenant(Kind.UNIT, f"{uid}/{folder}")
    return None


def _is_of_users(folder: str, above: list[str]) -> bool:
    if SESSION.fullmatch(folder):
        # init.scope at the top: the system's first process and its children stay in that group.
        return any(map(USERS.fullmatch, above)) or (folder == "init.scope" and not above)
    return bool(LAUNCHER.fullmatch(folder))


def _of_the_system(folder: str, above: list[str], *, beneath: bool) -> Tenant | None:
    """A pod, job or LXC container: only root can create its directory.

    `beneath`: the path leaves the daemon's namespace, which hides the names of groups above."""
    if (match := POD.search(folder)) and (
        any("kubepods" in name for name in (folder, *above))
        or (beneath and above in ([], *([one] for one in QUALITY)))
    ):
        return Tenant(Kind.POD, match[1].replace("_", "-"))
    if any(map(BATCH.fullmatch, above)):
        for parent, job in JOBS:
            if parent.fullmatch(above[-1]) and (match := job.fullmatch(folder)):
                return Tenant(Kind.JOB, match[1])
    boxed = bool(above) and BOXES.fullmatch(above[-1])
    return Tenant(Kind.CONTAINER, folder) if boxed else None


def _container(folders: list[str]) -> str:
    """The id of a pod's container from the directories below the pod; "" for its first process."""
    inside = map(CONTAINER.fullmatch, re.split(r":[a-z-]+:|/", "/".join(folders)))
    return next((match[1] for match in inside if match and match[1]), "")


def _plain(match: re.Match[str]) -> str:
    """A container's id or name, without systemd's escapes."""
    name = next(group for group in match.groups() if group)
    # With a slash, the name could be UID/NAME of another user's container.
    return ESCAPED.sub(lambda one: chr(int(one[1], 16)), name).replace("/", "\\x2f")
