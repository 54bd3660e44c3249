# SPDX-License-Identifier: Apache-2.0
"""The tenants of a process by its control group path, with paths of real systems."""

import os
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshared.machine.tenant import DEPTH, JobOf, Kind, OwnerOf, Tenant, locate

UID = "01234567-89ab-cdef-0123-456789abcdef"
SLICED = UID.replace("-", "_")
STATIC = UID.replace("-", "")           # UID of a static pod: the hash of its manifest
CONTAINER = "9f1c" * 16
V1 = ("pids", "hugetlb", "net_prio", "perf_event", "net_cls", "freezer", "devices", "memory",
      "blkio", "cpuacct", "cpu", "cpuset")


def unseen(_controllers: str, _path: str) -> int | None:
    return None


def unnamed(_controllers: str, _path: str) -> str:
    return ""


def tenants(cgroup: str, uid: int, own: str = "", environment: str = "", owner_of: OwnerOf = unseen,
            job_of: JobOf = unnamed) -> tuple[Tenant, ...]:
    return locate(cgroup, uid, own, owner_of, job_of, lambda: environment)[0]


def unknown_paths(cgroup: str, uid: int, own: str = "",
                  owner_of: OwnerOf = unseen) -> tuple[str, ...]:
    """The control group paths that locate() reports as of unknown form."""
    return locate(cgroup, uid, own, owner_of, unnamed, str)[1]


def v1(path: str, unified: str = "") -> str:
    """/proc/PID/cgroup of a process that is at `path` in each hierarchy of cgroup v1."""
    lines = [f"{13 - number}:{name}:{path}" for number, name in enumerate(V1)]
    lines.append(f"1:name=systemd:{path}")
    return "\n".join([*lines, *([f"0::{unified}"] if unified else [])]) + "\n"


POD = f"pod:{UID}"
BOX = f"container:{CONTAINER}"
KUBELET = "/kubepods.slice/kubepods-burstable.slice"
SESSIONS = "/user.slice/user-0.slice/user@0.service"

# Line of /proc/PID/cgroup, and the tenant of the process besides its user ("": none).
PLACES = {
    "nothing": ("0::/", ""),
    "a process that is gone": ("", ""),
    "a login": ("0::/user.slice/user-0.slice/session-3.scope", ""),
    "a desktop": (f"0::{SESSIONS}/app.slice/app-gnome-terminal-4.scope", ""),
    "a user's manager": (f"0::{SESSIONS}/init.scope", ""),
    "a service of the system": ("0::/system.slice/train.service", "unit:train.service"),
    "of a JupyterHub that makes no units": ("0::/system.slice/jupyterhub.service", ""),
    "a user's own jupyterhub": (
        f"0::{SESSIONS}/app.slice/jupyterhub.service", "unit:0/jupyterhub.service"),
    "a job of cron": ("0::/system.slice/cron.service", ""),
    "below a service": ("0::/system.slice/train.service/child/x.scope", "unit:train.service"),
    "a slice of one's own": ("0::/lab.slice/lab-gpu.slice/run-u12.scope", "unit:run-u12.scope"),
    "a user's service": (f"0::{SESSIONS}/app.slice/notes.service", "unit:0/notes.service"),
    "systemd-run --user": (f"0::{SESSIONS}/app.slice/run-u12.scope", "unit:0/run-u12.scope"),

    "docker": (f"0::/system.slice/docker-{CONTAINER}.scope", BOX),
    "docker, cgroupfs": (f"0::/docker/{CONTAINER}", BOX),
    "docker, v1": (v1(f"/docker/{CONTAINER}", "/system.slice/containerd.service"), BOX),
    "podman": (f"0::/machine.slice/libpod-{CONTAINER}.scope/container", BOX),
    "podman of a user": (f"0::{SESSIONS}/user.slice/libpod-{CONTAINER}.scope/container",
                         f"container:0/{CONTAINER}"),
    "podman in a unit": (f"0::/system.slice/llm.service/libpod-payload-{CONTAINER}",
                         "unit:llm.service"),
    "containerd, cgroupfs": (f"0::/default/{CONTAINER}", BOX),
    "nspawn": ("0::/machine.slice/systemd-nspawn@lab.service/payload/system.slice/x.service",
               "container:lab"),
    "machined": (r"0::/machine.slice/machine-my\x2dbox.scope/payload", "container:my-box"),
    "LXC": ("0::/lxc.payload.lab/system.slice/x.service", "container:lab"),

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
    "pod, hybrid": (
        v1(f"{KUBELET}/kubepods-burstable-pod{SLICED}.slice/cri-containerd-{CONTAINER}.scope",
           "/system.slice/containerd.service"), POD),
    "pod of kind, seen from its host": (
        f"0::/docker/{CONTAINER}/kubelet.slice/kubelet-kubepods.slice/"
        f"kubelet-kubepods-pod{SLICED}.slice/cri-containerd-{CONTAINER[::-1]}.scope", BOX),

    "job": ("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", "job:42"),
    "batch script, Debian's 22.05": (
        "0::/system.slice/gpuhost_slurmstepd.scope/job_3/step_batch/user/task_special", "job:3"),
    "job, v1": (v1("/slurm/uid_1000/job_42/step_0/task_0"), "job:42"),
    "job's daemon": ("0::/system.slice/slurmd.service", "unit:slurmd.service"),

    # SLURM 26.05 names the folder of a job by SLUID (its page on cgroup/v2).
    "SLURM 26.05": ("0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0",
                    "job:s5K1KKYAYG5D00"),
    "SLURM's own beside jobs": ("0::/system.slice/slurmstepd.scope/system",
                                "unit:slurmstepd.scope"),
    # Paths that the hook of OpenPBS 20 and 23 makes.
    "OpenPBS, v1": (v1("/pbs_jobs.service/jobid/2404743.opbs"), "job:2404743.opbs"),
    "OpenPBS, v2": ("0::/pbs_jobs.service/jobs/12345.pbs", "job:12345.pbs"),
    # Paths in the manual of HTCondor 8.9 and 23.
    "HTCondor, v1": (v1("/htcondor/condor_var_lib_condor_execute_slot1"), "job:slot1"),
    "HTCondor, v2": ("0::/system.slice/htcondor/condor_var_lib_condor_execute_slot1_23@node7",
                     "job:slot1_23"),
    # In k0s 1.2x, the cgroups of kubelet lie below the unit of k0s.
    "k0s": (f"0::/system.slice/k0sworker.service/kubepods/besteffort/pod{UID}/{CONTAINER}", POD),
    # kind 0.27 runs kubelet with --cgroup-root=/kubelet.
    "kind, in the node": (
        "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
        f"kubelet-kubepods-besteffort-pod{SLICED}.slice/cri-containerd-{CONTAINER}.scope", POD),
    # The node of a K3k cluster is a pod; the host counts pods in the cluster as that pod.
    "K3k": (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICED}.slice/"
            f"cri-containerd-{CONTAINER}.scope/kubepods/besteffort/pod{UID[::-1]}/{CONTAINER}",
            POD),
    "rootless docker, cgroupfs": (f"0::{SESSIONS}/app.slice/docker.service/docker/{CONTAINER}",
                                  "unit:0/docker.service"),
    "Incus' own pattern": ("0::/incus.payload/web/init.scope", "container:web"),
    "Proxmox": ("0::/lxc/101/ns/user.slice/user-0.slice/session-2.scope", "container:101"),
    # Sessions of WSL 2, GNOME 45 and snap 2.6x.
    "WSL": ("0::/init.scope", ""),
    "GNOME's terminal": (
        f"0::{SESSIONS}/app.slice/app-org.gnome.Terminal.slice/vte-spawn-322c4bd2.scope", ""),
    "GNOME's terminal, its server": (
        f"0::{SESSIONS}/app.slice/app-org.gnome.Terminal.slice/gnome-terminal-server.service", ""),
    "started by a message bus": (
        f"0::{SESSIONS}/app.slice/dbus-:1.15-org.gnome.Console@0.service", ""),
    "GNOME's shell": (f"0::{SESSIONS}/session.slice/org.gnome.Shell@wayland.service", ""),
    "a service among applications": (
        f"0::{SESSIONS}/app.slice/train.service", "unit:0/train.service"),
    "a service in a slice of its own": (
        f"0::{SESSIONS}/lab.slice/lab-app.slice/train.service", "unit:0/train.service"),
    "a system's slice for applications": (
        "0::/app-lab.slice/train.service", "unit:train.service"),
    "an autostart": (f"0::{SESSIONS}/app.slice/app-org.wezfurlong.wezterm@autostart.service", ""),
    "snap": (f"0::{SESSIONS}/app.slice/snap.code.code-9f8a1c2e-3b4d-4e5f.scope", ""),
}

# Lines and tenants as in PLACES, where the owners of folders are unknown.
GIVEN = {
    "a user's pod": (f"0::{SESSIONS}/kubepods/pod{UID}/{CONTAINER}", f"container:0/{CONTAINER}"),
    "a user's job": (f"0::{SESSIONS}/slurm/job_42", ""),
    "a user's system": (f"0::{SESSIONS}/system.slice/train.service", "unit:0/train.service"),
    "a service's pod": (f"0::/system.slice/x.service/kubepods/pod{UID}", "unit:x.service"),
    "a container's job": (f"0::/docker/{CONTAINER}/slurm/job_42", BOX),
    "a pod's user": (
        f"0::/kubepods/pod{UID}/{CONTAINER}/user.slice/user-0.slice/session-3.scope", POD),
    "a pod without Kubernetes": (f"0::/lab.slice/pod{UID}", ""),
}


def roots(_controllers: str, _folder: str) -> int:
    """Replaces the owner lookup: root owns all folders."""
    return 0


@pytest.mark.parametrize(("cgroup", "name"), PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("owner_of", [roots, unseen])
def test_tenants_are_recognised_in_cgroup_paths_of_units_pods_containers_and_jobs(
        cgroup: str, name: str, owner_of: OwnerOf) -> None:
    own = "0::/system.slice/nvshared.service\n"
    found = [str(one) for one in tenants(cgroup + "\n", 0, own, owner_of=owner_of)]
    assert found == ["user:0", *([name] if name else [])]
    assert unknown_paths(cgroup + "\n", 0, own, owner_of) == ()


@pytest.mark.parametrize(("cgroup", "name"), GIVEN.values(), ids=GIVEN)
def test_tenants_are_not_taken_from_names_a_user_can_choose(cgroup: str, name: str) -> None:
    found = [str(one) for one in tenants(cgroup + "\n", 0)]
    assert found == ["user:0", *([name] if name else [])]


def owner_in(owners: dict[str, int], _controllers: str, folder: str) -> int:
    """The owner of a folder: as in `owners`, else root."""
    return owners.get(folder, 0)


def test_tenant_in_a_systemd_unit_is_the_pod_only_if_root_owns_all_cgroups_of_the_path() -> None:
    path = f"0::/lab.slice/my-kubernetes.service/kubepods/besteffort/pod{UID}/{CONTAINER}\n"
    assert str(tenants(path, 0, owner_of=roots)[-1]) == POD
    assert str(tenants(path, 0)[-1]) == "unit:my-kubernetes.service"
    base = "/lab.slice/my-kubernetes.service"
    for theirs in (base, f"{base}/kubepods", f"{base}/kubepods/besteffort"):
        owners = {theirs: ALICE}
        found = tenants(path, ALICE, owner_of=partial(owner_in, owners))
        assert str(found[-1]) == "unit:my-kubernetes.service"


@pytest.mark.parametrize("cgroup", [
    f"0::/lab/pod{UID}", "0::/batch/4711", "0::/lab.slice/thing", "0::/batch/x\r0::/y",
    f"0::/../../alice/pod{UID}/{CONTAINER[:12]}"])
def test_tenant_lookup_reports_cgroup_paths_of_unknown_form(cgroup: str) -> None:
    assert [str(one) for one in tenants(f"{cgroup}\n", 0)] == ["user:0"]
    assert unknown_paths(f"{cgroup}\n", 0) == (cgroup[3:],)
    # Paths of any form below a user's own cgroups are not reported.
    assert unknown_paths(f"{cgroup}\n", ALICE, owner_of=lambda _controllers, _folder: ALICE) == ()


@pytest.mark.parametrize("path", [
    "/../../{}", "/../../../besteffort/{}", "/../../burstable/{}", "/../../../../kubepods/{}",
    "/../../../../system.slice/k0sworker.service/kubepods/besteffort/{}"])
def test_tenant_of_another_pod_is_recognised_from_inside_a_pod(path: str) -> None:
    found = tenants(f"0::{path.format(f'pod{UID}')}/{CONTAINER}\n", 0, "0::/\n")[-1]
    assert (str(found), found.container) == (POD, CONTAINER)


@pytest.mark.parametrize("path", [
    "/../../alice/{}", "/../../../alice/besteffort/{}", "/../../../lab.slice/alice/kubepods/{}",
    "/../../user.slice/user-1000.slice/user@1000.service/{}", "/{}", "/besteffort/{}"])
def test_pod_names_in_cgroups_inside_a_pod_are_not_trusted(path: str) -> None:
    found = tenants(f"0::{path.format(f'pod{UID}')}\n", ALICE, "0::/\n")
    assert not str(found[-1]).startswith("pod:")


@pytest.mark.parametrize("cgroup", [
    cgroup for cgroup, name in PLACES.values() if name == POD and CONTAINER in cgroup])
def test_pod_tenant_has_the_container_id_of_the_cgroup(cgroup: str) -> None:
    assert tenants(cgroup + "\n", 0)[-1].container == CONTAINER


def test_daemon_in_a_container_recognises_pods_of_the_same_node() -> None:
    node = f"0::/docker/{CONTAINER}/kubelet.slice/kubelet-kubepods.slice"
    own = f"{node}/kubelet-kubepods-pod{STATIC}.slice/cri-containerd-{CONTAINER}.scope"
    cgroup = f"{node}/kubelet-kubepods-pod{SLICED}.slice/cri-containerd-{CONTAINER[::-1]}.scope"
    assert str(tenants(cgroup, 0, own)[-1]) == POD
    # In a separate control group namespace, from which paths of other processes lead out.
    assert str(tenants(f"0::/../../kubelet-kubepods-pod{SLICED}.slice/x", 0, "0::/")[-1]) == POD
    assert [str(one) for one in tenants(own, 0, own)] == ["user:0"]


SLUID = "0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0\n"


def test_tenant_of_a_slurm_job_with_a_sluid_has_the_job_id_that_slurmstepd_reports() -> None:
    asked = []

    def job_of(controllers: str, path: str) -> str:
        asked.append((controllers, path))
        return "4711"

    environment = "HOME=/\0SLURM_JOB_ID=42\0PATH=/\0"
    found = tenants(SLUID, 0, environment=environment, owner_of=roots, job_of=job_of)
    assert str(found[-1]) == "job:4711"
    assert asked == [("", "/system.slice/slurmstepd.scope/s5K1KKYAYG5D00")]
    # Without slurmstepd's answer: the job id in the process's environment, else the SLUID.
    assert str(tenants(SLUID, 0, environment=environment)[-1]) == "job:42"
    assert str(tenants(SLUID, 0)[-1]) == "job:s5K1KKYAYG5D00"


@pytest.mark.parametrize("cgroup", [
    "0::/system.slice/slurmd.service\n", "0::/user.slice/user-0.slice/session-3.scope\n",
    "0::/system.slice/slurmd.service/s5K1KKYAYG5D00/step_0\n", "0::/s5K1KKYAYG5D00/step_0\n",
    "0::/user.slice/user-0.slice/user@0.service/slurmstepd.scope/s5K1KKYAYG5D00/step_0\n",
    "0::/system.slice/slurmstepd.scope/system\n", f"0::/docker/{CONTAINER}{SLUID[3:]}"])
def test_slurm_job_id_in_the_environment_counts_only_in_a_cgroup_of_that_job(cgroup: str) -> None:
    with_it = tenants(cgroup, 0, environment="SLURM_JOB_ID=4711\0", job_of=lambda *_: "4711")
    assert with_it == tenants(cgroup, 0)
    assert not any(one.kind is Kind.JOB for one in with_it)


# cgroups in which a user may create cgroups, and the tenant of programs there besides the user.
DELEGATED = {
    "/user.slice/user-1000.slice/user@1000.service": "",
    "/user.slice/user-1000.slice/user@1000.service/app.slice": "",
    "/system.slice/jupyter-alice.service": "unit:jupyter-alice.service",
    f"/docker/{CONTAINER}": BOX,
    f"/kubepods.slice/kubepods-pod{SLICED}.slice/crio-{CONTAINER}.scope": POD,
    "/lab.slice/alice": "", "/slurm/alice": "", "/kubepods/alice": "", "/user/alice/0": "",
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
    st.tuples(any_bytes, st.sampled_from(ENDS), st.sampled_from(LINES),
              st.sampled_from(["", *NAMES])).map("".join))


@given(base=st.sampled_from([*DELEGATED]), names=st.lists(folder_names, max_size=8),
       line=st.sampled_from(["0::{}\n", "4:memory:{}\n0::/\n", "1:name=systemd:/\n0::{}\n"]),
       owners=st.lists(st.sampled_from([ALICE, ALICE, 0, 1001]), min_size=8, max_size=8),
       environment=st.sampled_from(["", "SLURM_JOB_ID=42\0"]))
def test_tenant_of_a_cgroup_owned_by_a_user_is_that_user_for_any_name(
        base: str, names: list[str], line: str, owners: list[int], environment: str) -> None:
    path = "/".join([base, *names])
    depth = base.count("/")
    # Other users may own cgroups below, because processes of any user may be moved there.
    owned = dict(zip(range(depth + 1, depth + 9), owners, strict=True)) | {depth: ALICE}

    def owner_of(_controllers: str, folder: str) -> int:
        assert path.startswith(folder)
        return owned.get(folder.count("/"), 0)

    found = [str(one) for one in tenants(
        line.format(path), ALICE, environment=environment, owner_of=owner_of)]
    mine = ALICE
    assert found[0] == f"user:{mine}"
    inside = tuple(f"{kind}:{mine}/" for kind in ("container", "unit"))
    assert all(one == DELEGATED[base] or one.startswith(inside) for one in found[1:])


@given(names=st.lists(folder_names, max_size=8))
def test_tenants_below_a_users_systemd_manager_belong_to_that_user_if_cgroups_are_hidden(
        names: list[str]) -> None:
    path = "/".join(["/user.slice/user-1000.slice/user@1000.service", *names])
    found = [str(one) for one in tenants(f"0::{path}\n", ALICE)]
    mine = ALICE
    assert all(
        one.startswith((f"user:{mine}", f"unit:{mine}/", f"container:{mine}/")) for one in found)


def test_tenant_lookup_in_a_deep_cgroup_reads_owners_of_a_bounded_number_of_folders() -> None:
    asked: list[str] = []

    def owner_of(_controllers: str, folder: str) -> int:
        asked.append(folder)
        return 0

    deep = "/a" * 1900
    cgroup = f"0::{deep}/docker/{CONTAINER}\n"
    found, reported = locate(cgroup, ALICE, "", owner_of, unnamed, str)
    assert [one.kind for one in found] == [Kind.USER]
    assert len(reported) == 1
    assert len(asked) == DEPTH
