# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a socket."""

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nvshared.machine import peer

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


# As /proc/PID/cgroup of each looks; unit; pod.
CGROUPS = {
    "a service of a user": (
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter.service\n",
        "jupyter.service", ""),
    "below a service": ("0::/system.slice/train.service/child\n", "train.service", ""),
    "a session": ("0::/user.slice/user-0.slice/session-1.scope\n", "session-1.scope", ""),
    "SLURM": ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
              "slurmstepd.scope", ""),
    "docker": (f"0::/system.slice/docker-{CONTAINER}.scope\n", f"docker-{CONTAINER}.scope", ""),
    "docker, cgroupfs": (f"0::/docker/{CONTAINER}\n", "", ""),
    "podman": (
        f"0::/machine.slice/machine-libpod_pod_{CONTAINER}.slice/"
        f"libpod-{CONTAINER}.scope/container\n",
        f"libpod-{CONTAINER}.scope", ""),
    "containerd": (
        "0::/kubepods.slice/kubepods-burstable.slice/"
        f"kubepods-burstable-pod{SLICED}.slice/cri-containerd-{CONTAINER}.scope\n",
        f"cri-containerd-{CONTAINER}.scope", UID),
    "guaranteed, CRI-O": (
        f"0::/kubepods.slice/kubepods-pod{SLICED}.slice/crio-{CONTAINER}.scope/container\n",
        f"crio-{CONTAINER}.scope", UID),
    "cgroupfs": (f"0::/kubepods/besteffort/pod{UID}/{CONTAINER}\n", "", UID),
    "containerd without its systemd driver": (
        "0::/system.slice/containerd.service/"
        f"kubepods-besteffort-pod{SLICED}.slice:cri-containerd:{CONTAINER}\n",
        "containerd.service", UID),
    "kind": (
        "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
        f"kubelet-kubepods-besteffort-pod{SLICED}.slice/cri-containerd-{CONTAINER}.scope\n",
        f"cri-containerd-{CONTAINER}.scope", UID),
    "static": (
        "0::/kubepods.slice/kubepods-burstable.slice/"
        f"kubepods-burstable-pod{STATIC}.slice/cri-containerd-{CONTAINER}.scope\n",
        f"cri-containerd-{CONTAINER}.scope", STATIC),
    "static, cgroupfs": (f"0::/kubepods/burstable/pod{STATIC}/{CONTAINER}\n", "", STATIC),
    "v1, cgroupfs": (v1(f"/kubepods/burstable/pod{UID}/{CONTAINER}", "/"), "", UID),
    "v1, systemd": (
        v1("/kubepods.slice/kubepods-burstable.slice/"
           f"kubepods-burstable-pod{SLICED}.slice/docker-{CONTAINER}.scope"),
        f"docker-{CONTAINER}.scope", UID),
    "v1, systemd, hybrid": (
        v1(f"/kubepods.slice/kubepods-pod{SLICED}.slice/cri-containerd-{CONTAINER}.scope",
           "/system.slice/containerd.service"),
        f"cri-containerd-{CONTAINER}.scope", UID),
    "v1, a service": (v1("/system.slice/train.service", "/system.slice/train.service"),
                      "train.service", ""),
    "v1 in containers of containers": (
        v1(f"/docker/{CONTAINER}/kubelet/kubepods/burstable/pod{UID}/{CONTAINER}" + "/x" * 100,
           "/system.slice/containerd.service"),
        "containerd.service", UID),
    "a container that is no pod": (f"0::/libpod_parent/pod{CONTAINER}\n", "", ""),
    "outside of any": ("0::/\n", "", ""),
    "no such process": ("", "", ""),
}


def test_a_peer_is_what_the_kernel_says() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        who = peer.describe(*peer.credentials(ours))
    assert (who.pid, who.uid) == (os.getpid(), os.getuid())
    assert who.name == Path("/proc/self/comm").read_text().strip()
    assert str(who) == f"{who.name}[{who.pid}]"
    assert "pytest" in who.command or "python" in who.command


@pytest.mark.parametrize(("cgroup", "unit", "pod"), CGROUPS.values(), ids=CGROUPS)
def test_units_and_pods_are_read_from_the_cgroup(
    monkeypatch: pytest.MonkeyPatch, cgroup: str, unit: str, pod: str
) -> None:
    files = {"comm": "python\n", "cmdline": "python\0train.py\0", "cgroup": cgroup}
    monkeypatch.setattr(peer, "_read", lambda _, name, longest=4096: files[name][:longest])
    who = peer.describe(1, 0)
    assert (who.name, who.command) == ("python", "python train.py")
    assert (who.unit, who.pod) == (unit, pod)


def test_a_process_cannot_write_on_our_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"comm": "\x1b[2J\n", "cmdline": "a\nb\x07" + "x" * 5000, "cgroup": "0::/\x1b.service"}
    monkeypatch.setattr(peer, "_read", lambda _, name, longest=4096: files[name][:longest])
    who = peer.describe(1, 0)
    assert who.name == "?[2J"
    assert who.command.startswith("a?b?x")
    assert len(who.command) == peer.COMMAND_LONGEST
    assert who.unit == "?.service"


def test_a_number_without_a_name_is_a_user_too() -> None:
    assert peer.Peer(1, 0, "", "", "", "").user == "root"
    assert peer.Peer(1, 3_999_999_999, "", "", "", "").user == "3999999999"


def test_death_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        watch = peer.watch(process.pid)
        assert watch is not None
        assert not select.select([watch], [], [], 0)[0]
        process.kill()
        assert select.select([watch], [], [], 60)[0]
        os.close(watch)
    with pytest.raises(ProcessLookupError):
        peer.watch(process.pid)
    assert peer.watch(0) is None            # somebody from another pid namespace
    dead = peer.describe(process.pid, 0)
    assert (dead.name, dead.command) == ("?", "?")
