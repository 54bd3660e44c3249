# SPDX-License-Identifier: Apache-2.0
"""Tells which tenant a process belongs to: what is promised, limited and shown as one.

A tenant is a pod, a job, a container, a unit or a user, in this order: the first that a process is
in. Only what the kernel says counts, that is /proc/PID/cgroup and the user id.

A path in there is read from the root down, and the first folder that names a tenant decides. What
lies below it was made by whoever is in there, who may give it any name: the root of a container
makes folders in it, a user has a systemd of his own below user@UID.service. So the first folder
that is not root's ends what root has named. All below belongs to the owner of that folder, which
only root can change; there a name is one within that user, and never a pod's, a job's or another
user's. Where nobody can see the folders, user@UID.service says whose it is. Runtimes that keep
others below themselves (containerd.service, slurmstepd.scope) are looked through.

A daemon that runs in a container sees what lies beside it in there. So the folders that it shares
with a process say nothing about that process.
"""

import grp
import os
import pwd
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import takewhile


class Kind(StrEnum):
    """What a tenant is, from the most to the least telling."""

    POD = "pod"                         # of Kubernetes; its UID
    JOB = "job"                         # of SLURM: its number; of another batch system: its name
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
QUALITY = ("besteffort", "burstable")   # kubelet's folders for pods; those of the third are above
# By the folder above. SLURM names jobs by number, and since 26.05 by SLUID: 's' and base 32.
SLUID = re.compile(r"s[0-9A-HJKMNP-TV-Z]{13}")
JOBS = (
    (re.compile(r".*slurm.*|uid_[0-9]+"), re.compile(r"job_([0-9]+)")),
    (re.compile(r".*slurmstepd\.scope"), re.compile(f"({SLUID.pattern})")),
    (re.compile(r"jobid|jobs"), re.compile(r"([0-9]+(?:\[[0-9]*\])?\.[\w.-]+)")),     # of PBS
    (re.compile(r"htcondor"), re.compile(r"condor_.+_(slot[0-9]+(?:_[0-9]+)?)(?:@.+)?")),
)
BATCH = re.compile(r".*slurm.*|pbs.*\.(?:service|slice)|htcondor")
CONTAINER = re.compile(
    rf"(?:(?:docker|libpod|libpod-payload|nerdctl|crio|cri-containerd)-)?({HEX})(?:\.scope)?"
    r"|(?:lxc|incus)\.payload\.(.+)|machine-(.+)\.scope|systemd-nspawn@(.+)\.service"
)
BOXES = re.compile(r"(?:lxc|incus)(?:\.payload)?")    # with containers by name
UNIT = re.compile(r".+\.(?:service|scope)")
# What the login manager and desktops put a user's own programs in: these are the user's.
SESSION = re.compile(
    r"(?:session-.+|init|snap\..+)\.scope|(?:app|[a-z]+-spawn)-.+\.(?:service|scope)")
# Services of the system that start programs of many users: these are the users', too.
LAUNCHER = re.compile(r"(?:jupyterhub|rstudio-server|sshd?|cron|crond|anacron|atd)\.service")
MANAGER = re.compile(r"user@([0-9]{1,10})\.service")
USERS = re.compile(r"user-[0-9]+\.slice")
RUNTIME = re.compile(
    r"(?:containerd|docker|crio|cri-o|cri-docker|kubelet|k3s|k3s-agent|rke2-server|rke2-agent"
    r"|k0s.+|podman|lxc|lxd|incus|snap\.(?:lxd|microk8s|k8s)\..+|slurmd|pbs.*|condor)\.service"
    r"|(?:.+_)?slurmstepd\.scope"
)
# Folders that only root makes, at places where nobody can see whose they are.
ROOTS = re.compile(
    rf".+\.slice|kubelet|kubepods|{'|'.join(QUALITY)}|slurm.*|uid_[0-9]+|jobid|jobs|htcondor"
    rf"|{BOXES.pattern}|{RUNTIME.pattern}"
)
DEPTH = 32                              # folders of a path that count, from the root
STRANGE = object()                      # of a path that tells nothing here
ROOT = 0
OTHERS = -1                             # of a folder: also those that are not its owner write in it
OwnerOf = Callable[[str, str], int | None]
JobOf = Callable[[str, str], str]
ESCAPED = re.compile(r"\\x([0-9a-f]{2})")


def unseen(_controllers: str, _path: str) -> int | None:
    """Whose a control group's folder is, for who cannot see any."""
    return None


def unnamed(_controllers: str, _path: str) -> str:
    """The number of a job whose folder is called otherwise, for who cannot find out."""
    return ""


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


def tenants(
    cgroup: str, uid: int, own: str = "", environment: str = "", owner_of: OwnerOf = unseen,
    job_of: JobOf = unnamed,
) -> tuple[Tenant, ...]:
    """Those whose terms a process is under: its user, and besides what it is in, if anything.

    `cgroup` and `own` are what /proc/PID/cgroup says of the process and of the daemon;
    `environment` is /proc/PID/environ as of the start of the process, which is its user's word:
    it counts in a folder that SLURM made for a job alone, where `job_of` cannot tell.
    """
    found, _ = locate(cgroup, uid, own, owner_of, job_of)
    if is_unnumbered(found[-1]):
        job = re.search(r"(?:^|\0)SLURM_JOB_ID=([0-9]+)\0", environment)
        return (*found[:-1], Tenant(Kind.JOB, job[1]) if job else found[-1])
    return found


def locate(
    cgroup: str, uid: int, own: str = "", owner_of: OwnerOf = unseen, job_of: JobOf = unnamed,
) -> tuple[tuple[Tenant, ...], tuple[str, ...]]:
    """The same, and if its user is all that is known, the paths in which root named folders that
    tell nothing here: somebody may have meant them to."""
    beside = dict(_lines(own))
    found = [
        (path, _of_path(controllers, path, beside.get(controllers, ""), uid, owner_of, job_of))
        for controllers, path in _lines(cgroup)
    ]
    known = [one for _, one in found if isinstance(one, Tenant)]
    best = min(known, key=lambda one: list(Kind).index(one.kind), default=None)
    whole = Tenant(Kind.USER, user(uid))
    if best is not None:
        return (whole, best), ()
    return (whole,), tuple(path for path, one in found if one is STRANGE)


def is_unnumbered(tenant: Tenant) -> bool:
    """Whether it is a job of SLURM of which no more is known than its folder's name."""
    return tenant.kind is Kind.JOB and SLUID.fullmatch(tenant.name) is not None


def _lines(cgroup: str) -> list[tuple[str, str]]:
    """Controllers and path of each line ID:CONTROLLERS:PATH of cgroups(7).

    A folder's name may have any character but "/" and the newline, those included at which
    str.splitlines() ends a line too.
    """
    parts = [line.split(":", 2) for line in cgroup.split("\n")]
    return [(part[1], part[2]) for part in parts if len(part) == 3]


def _of_path(
    controllers: str, path: str, beside: str, uid: int, owner_of: OwnerOf, job_of: JobOf = unnamed,
) -> Tenant | object | None:
    """None: it is in nothing but its user's sessions, or was started for that user; STRANGE."""
    folders = [folder for folder in path.split("/") if folder not in ("", "..")][:DEPTH]
    out = "/.." * path.split("/").count("..")   # of what we can see, before what can be named
    alike = zip(folders, [one for one in beside.split("/") if one], strict=False)
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], alike)))
    unit: Tenant | None = None
    certain = True                      # that root gave the names so far
    for number, folder in enumerate(folders):
        above = folders[:number]
        here = "/".join([out, *folders[:number + 1]])
        manager = MANAGER.fullmatch(folder) if unit is None else None
        if number >= shared and manager is None:
            if certain and (trusted := _of_the_system(folder, above, beneath=bool(out))):
                if is_unnumbered(trusted) and (job := job_of(controllers, here)):
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
        # What is below has names that root gave, if all above is root's.
        if unit is not None and (owner or not certain):
            return unit
    told = all(folder.endswith(".slice") for folder in folders[shared:])
    return unit or (None if told else STRANGE)


def _of_a_user(uid: int, folders: list[str]) -> Tenant | None:
    """In folders that this user made, or could have made."""
    for folder in folders:
        if match := CONTAINER.fullmatch(folder):
            return Tenant(Kind.CONTAINER, f"{user(uid)}/{_plain(match)}")
        if SESSION.fullmatch(folder):
            return None
        if UNIT.fullmatch(folder):
            return Tenant(Kind.UNIT, f"{user(uid)}/{folder}")
    return None


def _is_of_users(folder: str, above: list[str]) -> bool:
    """Whether root made it for what users start."""
    if SESSION.fullmatch(folder):
        # Where the system's own first process stays in its folder, so do those that it starts.
        return any(map(USERS.fullmatch, above)) or (folder == "init.scope" and not above)
    return bool(LAUNCHER.fullmatch(folder))


def _of_the_system(folder: str, above: list[str], *, beneath: bool) -> Tenant | None:
    """What only root makes: a pod, a job, a container of LXC.

    `beneath`: what would be above these is above us, too, and has no names here.
    """
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
    """The id of a pod's container from what lies below the pod; "" for its own first process."""
    inside = map(CONTAINER.fullmatch, re.split(r":[a-z-]+:|/", "/".join(folders)))
    return next((match[1] for match in inside if match and match[1]), "")


def _plain(match: re.Match[str]) -> str:
    """A container's id or name, without what systemd puts in the place of other characters."""
    name = next(group for group in match.groups() if group)
    # A slash would make it another's: what is left of one is a user.
    return ESCAPED.sub(lambda one: chr(int(one[1], 16)), name).replace("/", "\\x2f")
