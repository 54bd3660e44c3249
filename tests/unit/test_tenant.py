# SPDX-License-Identifier: Apache-2.0
"""Whose a process is, from the control groups that real systems put it in."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshared.machine.tenant import OTHERS, tenants, unseen, user

UID = "01234567-89ab-cdef-0123-456789abcdef"
SLICED = UID.replace("-", "_")
STATIC = UID.replace("-", "")           # a static pod's: the hash of its manifest
CONTAINER = "9f1c" * 16
V1 = ("pids", "hugetlb", "net_prio", "perf_event", "net_cls", "freezer", "devices", "memory",
      "blkio", "cpuacct", "cpu", "cpuset")


def v1(path: str, unified: str = "") -> str:
    """/proc/PID/cgroup of a process that is at `path` in each hierarchy of cgroup v1."""
    lines = [f"{13 - number}:{name}:{path}" for number, name in enumerate(V1)]
    lines.append(f"1:name=systemd:{path}")
    return "\n".join([*lines, *([f"0::{unified}"] if unified else [])]) + "\n"


POD = f"pod:{UID}"
BOX = f"container:{CONTAINER}"
KUBELET = "/kubepods.slice/kubepods-burstable.slice"
SESSIONS = "/user.slice/user-0.slice/user@0.service"

# As /proc/PID/cgroup of each looks, and what the process is in besides its user.
PLACES = {
    "nothing": ("0::/", ""),
    "a process that is gone": ("", ""),
    "a login": ("0::/user.slice/user-0.slice/session-3.scope", ""),
    "a desktop": (f"0::{SESSIONS}/app.slice/app-gnome-terminal-4.scope", ""),
    "tmux of a desktop": (f"0::{SESSIONS}/app.slice/tmux-spawn-1b.scope", ""),
    "a user's manager": (f"0::{SESSIONS}/init.scope", ""),
    "a service of the system": ("0::/system.slice/train.service", "unit:train.service"),
    "an instance": (
        "0::/system.slice/system-jupyter.slice/jupyter@alice.service",
        "unit:jupyter@alice.service"),
    "JupyterHub's": ("0::/system.slice/jupyter-alice.service", "unit:jupyter-alice.service"),
    "of a JupyterHub that makes no units": ("0::/system.slice/jupyterhub.service", ""),
    "a user's own jupyterhub": (
        f"0::{SESSIONS}/app.slice/jupyterhub.service", "unit:root/jupyterhub.service"),
    "a job of cron": ("0::/system.slice/cron.service", ""),
    "below a service": ("0::/system.slice/train.service/child/x.scope", "unit:train.service"),
    "a slice of one's own": ("0::/lab.slice/lab-gpu.slice/run-u12.scope", "unit:run-u12.scope"),
    "a user's service": (f"0::{SESSIONS}/app.slice/notes.service", "unit:root/notes.service"),
    "systemd-run --user": (f"0::{SESSIONS}/app.slice/run-u12.scope", "unit:root/run-u12.scope"),
    "v1, a service": (v1("/system.slice/train.service"), "unit:train.service"),

    "docker": (f"0::/system.slice/docker-{CONTAINER}.scope", BOX),
    "docker, cgroupfs": (f"0::/docker/{CONTAINER}", BOX),
    "docker, v1": (v1(f"/docker/{CONTAINER}", "/system.slice/containerd.service"), BOX),
    "docker below a folder": (f"0::/lab/{CONTAINER}", BOX),
    "docker of a user": (f"0::{SESSIONS}/user.slice/docker-{CONTAINER}.scope",
                         f"container:root/{CONTAINER}"),
    "podman": (f"0::/machine.slice/libpod-{CONTAINER}.scope/container", BOX),
    "podman's pod": (f"0::/machine.slice/machine-libpod_pod_{CONTAINER}.slice/"
                     f"libpod-{CONTAINER}.scope", BOX),
    "podman, cgroupfs": (f"0::/libpod_parent/libpod-{CONTAINER}", BOX),
    "podman of a user": (f"0::{SESSIONS}/user.slice/libpod-{CONTAINER}.scope/container",
                         f"container:root/{CONTAINER}"),
    "podman in a unit": (f"0::/system.slice/llm.service/libpod-payload-{CONTAINER}",
                         "unit:llm.service"),
    "nerdctl": (f"0::/system.slice/nerdctl-{CONTAINER}.scope", BOX),
    "containerd, cgroupfs": (f"0::/default/{CONTAINER}", BOX),
    "nspawn": ("0::/machine.slice/systemd-nspawn@lab.service/payload/system.slice/x.service",
               "container:lab"),
    "machined": (r"0::/machine.slice/machine-my\x2dbox.scope/payload", "container:my-box"),
    "LXC": ("0::/lxc.payload.lab/system.slice/x.service", "container:lab"),
    "LXC, v1": (v1("/lxc/lab"), "container:lab"),

    "pod, best effort": (
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICED}.slice/"
        f"cri-containerd-{CONTAINER}.scope", POD),
    "pod, guaranteed, CRI-O": (
        f"0::/kubepods.slice/kubepods-pod{SLICED}.slice/crio-{CONTAINER}.scope/container", POD),
    "pod, cgroupfs": (f"0::/kubepods/besteffort/pod{UID}/{CONTAINER}", POD),
    "pod without its runtime's systemd driver": (
        "0::/system.slice/containerd.service/"
        f"kubepods-besteffort-pod{SLICED}.slice:cri-containerd:{CONTAINER}", POD),
    "pod, static": (f"0::{KUBELET}/kubepods-burstable-pod{STATIC}.slice/crio-{CONTAINER}.scope",
                    f"pod:{STATIC}"),
    "pod, v1, cgroupfs": (v1(f"/kubepods/burstable/pod{UID}/{CONTAINER}", "/"), POD),
    "pod, v1, systemd": (
        v1(f"{KUBELET}/kubepods-burstable-pod{SLICED}.slice/docker-{CONTAINER}.scope"), POD),
    "pod, hybrid": (
        v1(f"{KUBELET}/kubepods-burstable-pod{SLICED}.slice/cri-containerd-{CONTAINER}.scope",
           "/system.slice/containerd.service"), POD),
    "pod of kind, seen from its host": (
        f"0::/docker/{CONTAINER}/kubelet.slice/kubelet-kubepods.slice/"
        f"kubelet-kubepods-pod{SLICED}.slice/cri-containerd-{CONTAINER[::-1]}.scope", BOX),

    "job": ("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", "job:42"),
    "job on a named node": ("0::/system.slice/n1_slurmstepd.scope/job_42/step_batch", "job:42"),
    "batch script, Debian's 22.05": (
        "0::/system.slice/gpuhost_slurmstepd.scope/job_3/step_batch/user/task_special", "job:3"),
    "job, v1": (v1("/slurm/uid_1000/job_42/step_0/task_0"), "job:42"),
    "job with names of nodes, v1": (v1("/slurm_n1/uid_1000/job_42/step_0"), "job:42"),
    "job's daemon": ("0::/system.slice/slurmd.service", "unit:slurmd.service"),

    # Names that somebody without root's powers may give.
    "a user's pod": (f"0::{SESSIONS}/kubepods/pod{UID}/{CONTAINER}", f"container:root/{CONTAINER}"),
    "a user's job": (f"0::{SESSIONS}/slurm/job_42", ""),
    "a user's system": (f"0::{SESSIONS}/system.slice/train.service", "unit:root/train.service"),
    "a service's pod": (f"0::/system.slice/x.service/kubepods/pod{UID}", "unit:x.service"),
    "a container's job": (f"0::/docker/{CONTAINER}/slurm/job_42", BOX),
    "a pod's user": (
        f"0::/kubepods/pod{UID}/{CONTAINER}/user.slice/user-0.slice/session-3.scope", POD),
    "a pod without Kubernetes": (f"0::/lab.slice/pod{UID}", ""),
}


@pytest.mark.parametrize(("cgroup", "name"), PLACES.values(), ids=PLACES)
def test_what_it_is_in(cgroup: str, name: str) -> None:
    found = [str(one) for one in tenants(cgroup + "\n", 0, "0::/system.slice/nvshared.service\n")]
    assert found == ["user:root", *([name] if name else [])]


@pytest.mark.parametrize("cgroup", [
    cgroup for cgroup, name in PLACES.values() if name == POD and CONTAINER in cgroup])
def test_a_pods_container_is_known_by_its_id(cgroup: str) -> None:
    assert tenants(cgroup + "\n", 0)[-1].container == CONTAINER


def test_a_daemon_in_a_container_tells_apart_what_is_beside_it() -> None:
    node = f"0::/docker/{CONTAINER}/kubelet.slice/kubelet-kubepods.slice"
    own = f"{node}/kubelet-kubepods-pod{STATIC}.slice/cri-containerd-{CONTAINER}.scope"
    cgroup = f"{node}/kubelet-kubepods-pod{SLICED}.slice/cri-containerd-{CONTAINER[::-1]}.scope"
    assert str(tenants(cgroup, 0, own)[-1]) == POD
    # In a control group namespace of its own, where others' paths lead out of it first.
    assert str(tenants(f"0::/../../kubelet-kubepods-pod{SLICED}.slice/x", 0, "0::/")[-1]) == POD
    assert [str(one) for one in tenants(own, 0, own)] == ["user:root"]


def test_a_job_is_known_by_its_environment_where_it_has_no_control_group() -> None:
    cgroup = "0::/system.slice/slurmd.service\n"
    environment = "HOME=/\0SLURM_JOB_ID=42\0PATH=/\0"
    assert str(tenants(cgroup, 0, environment=environment)[-1]) == "job:42"
    # Who is not SLURM's says nothing by it.
    login = "0::/user.slice/user-0.slice/session-3.scope\n"
    assert len(tenants(login, 0, environment=environment)) == 1


def test_a_user_without_a_name_is_a_number() -> None:
    assert [str(one) for one in tenants("0::/", 3_999_999_999)] == ["user:3999999999"]


# Where root lets a user make groups, and what that user's programs in there may be besides.
DELEGATED = {
    "/user.slice/user-1000.slice/user@1000.service": "",
    "/user.slice/user-1000.slice/user@1000.service/app.slice": "",
    "/system.slice/jupyter-alice.service": "unit:jupyter-alice.service",
    f"/docker/{CONTAINER}": BOX,
    f"/kubepods.slice/kubepods-pod{SLICED}.slice/crio-{CONTAINER}.scope": POD,
    "/lab.slice/alice": "",
    "/slurm/alice": "",
    "/kubepods/alice": "",
    "/user/alice/0": "",
    "/alice": "",
}
ALICE = 1000
NAMES = [
    "kubepods", "kubepods.slice", "besteffort", f"pod{UID}", f"kubepods-pod{SLICED}.slice",
    CONTAINER, f"cri-containerd-{CONTAINER}.scope", "slurm", "slurmstepd.scope", "uid_1001",
    "job_42", "step_0", "task_0", "s5K1KKYAYG5D00", "docker", f"docker-{CONTAINER}.scope", "lxc",
    "lxc.payload.lab", r"machine-a\x2fb.scope", "system.slice", "train.service", "user.slice",
    "user-1001.slice", "user@1001.service", "user-0.slice", "user@0.service", "init.scope",
    "session-1.scope", "containerd.service", "kubelet.service", "slurmd.service", "sshd.service",
]
ENDS = ["\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r\r"]
LINES = ["0::", "1:memory:", "4:name=systemd:", ":", "::", ""]
any_bytes = st.binary(min_size=1, max_size=40).map(os.fsdecode).filter(
    lambda name: not {"/", "\n", "\0"} & {*name} and name not in (".", ".."))
folder_names = st.one_of(
    st.sampled_from(NAMES), any_bytes,
    st.tuples(
        any_bytes, st.sampled_from(ENDS), st.sampled_from(LINES), st.sampled_from(["", *NAMES]),
    ).map("".join))


@given(
    base=st.sampled_from([*DELEGATED]), names=st.lists(folder_names, max_size=8),
    line=st.sampled_from(["0::{}\n", "4:memory:{}\n0::/\n", "1:name=systemd:/\n0::{}\n"]),
    owners=st.lists(st.sampled_from([ALICE, ALICE, 0, 1001]), min_size=8, max_size=8),
    environment=st.sampled_from(["", "SLURM_JOB_ID=42\0"]),
)
def test_tenants_of_a_users_folders_are_that_users_whatever_their_names(
    base: str, names: list[str], line: str, owners: list[int], environment: str
) -> None:
    path = "/".join([base, *names])
    depth = base.count("/")
    # Of what is below, others may own some: who enters a user's programs may be anybody.
    owned = dict(zip(range(depth + 1, depth + 9), owners, strict=True)) | {depth: ALICE}

    def owner_of(_controllers: str, folder: str) -> int:
        assert path.startswith(folder)
        return owned.get(folder.count("/"), 0)

    found = [str(one) for one in tenants(
        line.format(path), ALICE, environment=environment, owner_of=owner_of)]
    mine = user(ALICE)
    assert found[0] == f"user:{mine}"
    inside = tuple(f"{kind}:{mine}/" for kind in ("container", "unit"))
    assert all(one == DELEGATED[base] or one.startswith(inside) for one in found[1:])


@given(names=st.lists(folder_names, max_size=8))
def test_tenants_below_a_users_manager_are_that_users_where_no_folder_is_seen(
    names: list[str],
) -> None:
    path = "/".join(["/user.slice/user-1000.slice/user@1000.service", *names])
    found = [str(one) for one in tenants(f"0::{path}\n", ALICE)]
    mine = user(ALICE)
    assert all(
        one.startswith((f"user:{mine}", f"unit:{mine}/", f"container:{mine}/")) for one in found)


def test_tenants_in_a_folder_that_several_may_write_in_are_the_processes_own_users() -> None:
    shared = "/scratch"
    path = f"0::{shared}/kubepods/pod{UID}/x.service\n"
    for uid in (ALICE, 1001):
        found = tenants(path, uid, owner_of=lambda _, folder: OTHERS if folder == shared else 0)
        assert str(found[-1]) == f"unit:{user(uid)}/x.service"


def test_tenants_of_a_slice_named_after_another_user_are_its_owners() -> None:
    base = "/user.slice/user-1000.slice/user@1000.service"
    path = f"0::{base}/user.slice/user-1001.slice/train.service\n"
    for owner_of in (unseen, lambda _, folder: ALICE if folder.startswith(base) else 0):
        found = tenants(path, ALICE, owner_of=owner_of)
        assert str(found[-1]) == f"unit:{user(ALICE)}/train.service"
