# SPDX-License-Identifier: Apache-2.0
"""Tenants of programs in real control groups. The tests need root.

A user may create groups of any name below a group that root delegated, as systemd does for each
user's manager. No name makes a program count for another user, job or pod.
"""

import errno
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from bench.trace import Line
from nvshared.machine import cgroup
from tests.integration.conftest import BUILD, ROOT, Process, Site, wait_until
from tests.unit.test_tenant import CONTAINER, ENDS, LINES, NAMES, SLICED, UID

ALICE, BOB = 1000, 1001
PATHS = 30                              # number of paths of groups that a user creates
SMALL = ("--capacity", "60MiB")         # a card on which two programs do not fit together
FULL = 255                              # maximum number of bytes of a folder's name


@pytest.fixture
def groups() -> Iterator[Path]:
    """A systemd slice for one test among the system's cgroups; removed at the end."""
    yield from a_slice(cgroup.mount_point(""))


@pytest.fixture
def old_groups() -> Iterator[Path]:
    if not (cgroup.mount_point("freezer") / "tasks").exists():
        pytest.skip("this machine has no hierarchy of version 1")
    yield from a_slice(cgroup.mount_point("freezer"))


def a_slice(top: Path) -> Iterator[Path]:
    made = top / f"nvshare{uuid4().hex[:8]}.slice"
    try:
        made.mkdir()
    except OSError:
        pytest.skip("no control group can be made here")
    yield made
    for _, within, _, descriptor in os.fwalk(made, topdown=False):
        for name in within:
            remove(name, descriptor)
    remove(str(made))


def remove(name: str, folder: int | None = None) -> None:
    """Removes a cgroup when its processes have ended; they may just have been killed."""
    while True:
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            time.sleep(0.01)
        else:
            return


@pytest.fixture(autouse=True)
def end_all(site: Site, groups: Path) -> Iterator[None]:
    """Ends all programs, because a cgroup with programs cannot be removed."""
    yield
    site.close()


@pytest.fixture
def site(public_site: Site) -> Site:
    return public_site


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def pod(groups: Path) -> Path:
    return made(groups / "kubepods.slice" / f"kubepods-pod{SLICED}.slice"
                / f"cri-containerd-{CONTAINER}.scope")


def delegated(folder: Path, uid: int) -> Path:
    """A cgroup delegated to a user as by systemd; returns the cgroup of its first process."""
    first = made(folder / "init.scope")
    for one in (folder, first):
        for file in (one, one / "cgroup.procs"):
            os.chown(file, uid, uid)
    return first


def manager(groups: Path, uid: int) -> Path:
    return delegated(groups / f"user-{uid}.slice" / f"user@{uid}.service", uid)


def inside(
    site: Site, group: Path, uid: int, command: list[str], **environment: str
) -> "subprocess.Popen[str]":
    """A program of a user in a group. It may read all files: other users may be unable to enter
    the checkout, for example below /root."""

    def enter() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    become = [
        "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups",
        "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--",
    ]
    return site.program(
        [*(become if uid else []), *command], environment, preexec_fn=enter, stderr=None)


def workload(
    site: Site, group: Path, uid: int, *options: str, **environment: str
) -> "subprocess.Popen[str]":
    command = [str(BUILD / "nvshare-workload"), "--json", "--chunk", "4MiB", *options]
    return inside(site, group, uid, command, **environment)


def pretender(site: Site, group: Path, uid: int) -> Process:
    popen = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.pretender", str(site.socket),
         site.uuids[0].hex(), str(uid), str(group)],
        env={"PATH": os.environ["PATH"]}, cwd=ROOT, text=True, bufsize=1,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    site.started.append(popen)
    return Process(popen)


def says(to: Process, line: str, answer: str) -> None:
    to.tell(line)
    to.wait_for(answer)


def tenants(site: Site, pid: int) -> list[set[str]]:
    return [set(line["tenants"]) for line in joined(site) if line.get("pid") == pid]


def joined(site: Site) -> list[Line]:
    return [line for line in site.trace() if line.get("event") == "joined"]


def paths() -> Iterator[list[bytes]]:
    """Paths of folders that a user creates, with names of groups of other users and systems."""
    dice = random.Random(20)
    whole = [f"/kubepods.slice/kubepods-pod{SLICED}.slice/cri-containerd-{CONTAINER}.scope",
             f"/kubepods/besteffort/pod{UID}/{CONTAINER}", "/system.slice/train.service",
             "/slurm/uid_0/job_42/step_0", f"/user.slice/user-{BOB}.slice/train.service",
             f"/user.slice/user-{BOB}.slice/user@{BOB}.service/train.service", "/"]
    for end in ENDS:                    # then the name looks like a new line of /proc/PID/cgroup
        for path in whole:
            yield [os.fsencode(f"x{end}0::"), *map(os.fsencode, filter(None, path.split("/")))]
    yield [b"a" * 250] * 20             # longer than the kernel prints: it may cut the path
    for _ in range(PATHS):
        folders = []
        for _ in range(dice.randint(1, 5)):
            name = dice.randbytes(dice.randint(0, 30)).translate(None, b"\0\n/")
            if dice.random() < 0.5:
                name += os.fsencode(dice.choice(ENDS) + dice.choice(LINES))
            if dice.random() < 0.8 or not name:
                name += os.fsencode(dice.choice(NAMES))
            folders.append(name[-FULL:])
        yield folders


def test_user_cannot_change_tenants_of_programs_by_creating_cgroups(
    site: Site, groups: Path
) -> None:
    site.start("--trace", str(site.folder / "trace"))
    theirs = {}
    for group, own in (
        (manager(groups, ALICE), ""),
        (delegated(groups / "jupyter-alice.service", ALICE), "unit:jupyter-alice.service"),
        (delegated(groups / "lab" / "alice", ALICE), "")):
        attacker = pretender(site, group, ALICE)
        for folders in paths():
            says(attacker, " ".join(name.hex() for name in folders), "was there")
        theirs[attacker.popen.pid] = own
    number = len([*paths()])
    wait_until(lambda: all(len(tenants(site, pid)) == number for pid in theirs))
    prefixes = (f"unit:{ALICE}/", f"container:{ALICE}/")
    for pid, own in theirs.items():
        for found in tenants(site, pid):
            assert found - {own} >= {f"user:{ALICE}"}
            assert all(one.startswith(prefixes) or one in (own, f"user:{ALICE}")
                       for one in found), found
    journal = site.log.read_text()
    assert "Traceback" not in journal
    assert "which identifies no" not in journal      # a user cannot fill the journal either


def test_user_cannot_change_tenants_of_programs_by_cgroups_of_version_1(
    site: Site, old_groups: Path
) -> None:
    site.start("--trace", str(site.folder / "trace"))
    attacker = pretender(site, delegated(old_groups / "alice", ALICE), ALICE)
    tried = [folders for folders in paths() if dict.fromkeys(folders) != {b"a" * 250: None}][::4]
    for folders in tried:
        says(attacker, " ".join(name.hex() for name in folders), "was there")
    pid = attacker.popen.pid
    wait_until(lambda: len(tenants(site, pid)) == len(tried))
    mine = ALICE
    assert all(
        one == f"user:{mine}" or one.startswith((f"unit:{mine}/", f"container:{mine}/"))
        for found in tenants(site, pid) for one in found)
    site.close()                        # a cgroup with a program cannot be removed


def test_root_of_a_pod_counts_as_a_user_and_cannot_take_all_client_slots(
    site: Site, groups: Path
) -> None:
    daemon = site.start(*SMALL, "--max-clients", "120", "--trace", str(site.folder / "trace"))
    box = pod(groups)
    lies = inside(site, box, 0, [
        sys.executable, "-c", LIES, str(site.socket), site.uuids[0].hex(), "200"])
    assert lies.stdout is not None
    assert lies.stdout.readline() == "done\n"
    other = made(groups / "lab.slice" / "train.service")
    for uid in (BOB, ALICE, 0):
        program = workload(site, other, uid, "--memory", "40MiB", "--steps", "2")
        said, _ = program.communicate()
        assert program.returncode == 0, said
        wait_until(lambda pid=program.pid: bool(tenants(site, pid)))  # type: ignore[misc]
    assert daemon.poll() is None
    assert tenants(site, lies.pid)[0] == {f"pod:{UID}", "user:0"}


LIES = '''
import sys
from nvshared.scheduler.events import Memory
from tests.integration.fakehook import Hook
path, uuid, number = sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3])
hooks = []
for _ in range(number):
    try:
        hooks.append(Hook(path, uuid))
        hooks[-1].hello()
    except OSError:
        continue
hooks[0].memory = Memory(host=1 << 44, beyond=1 << 44)
hooks[0].want()
print("done", flush=True)
input()
'''


def test_job_id_is_read_from_slurmstepd_and_not_from_programs_of_the_job(
    site: Site, groups: Path
) -> None:
    site.start("--trace", str(site.folder / "trace"))
    job = made(groups / "slurmstepd.scope" / "s5K1KKYAYG5D00")
    tasks = [made(job / "step_0" / "user" / "task_0"),
             made(job.parent / "sEKNKTV3WPV500" / "step_batch" / "user" / "task_special"),
             made(groups / "slurmd.service")]
    inside(site, made(job / "step_0" / "slurm"), 0, [
        "bash", "-c", "exec -a 'slurmstepd: [4711.0]' sleep 1000"], LD_PRELOAD="")
    # A process of the user takes the name of SLURM's daemon, too.
    inside(site, tasks[1], ALICE, [
        "bash", "-c", "exec -a 'slurmstepd: [4711.0]' sleep 1000"], LD_PRELOAD="")
    wait_until(lambda: b"slurmstepd" in b"".join(
        Path(f"/proc/{one.pid}/cmdline").read_bytes() for one in site.started[-2:]))
    programs = [workload(site, task, ALICE, "--memory", "8MiB", "--steps", "2", SLURM_JOB_ID="42")
                for task in tasks]
    for program in programs:
        program.communicate()
        assert program.returncode == 0
    wait_until(lambda: all(tenants(site, one.pid) for one in programs))
    mine = f"user:{ALICE}"
    found = [tenants(site, one.pid)[0] - {mine} for one in programs]
    assert found[0] == {"job:4711"}
    # its own job, or a job that no other process claims
    assert found[1] <= {"job:42", "job:sEKNKTV3WPV500"}
    assert found[2] == {"unit:slurmd.service"}


# Executes a command in a new cgroup namespace, as a container runtime does. $1: the pod's group,
# $2: a second mount point for the host's groups, or "", $3: the mount point of groups.
CONTAINED = '''
set -eu
echo $$ >"$1/cgroup.procs"
# A memory hierarchy of version 1 is not under test here: leave its groups.
if [ -e /sys/fs/cgroup/memory ]; then echo $$ >/sys/fs/cgroup/memory/cgroup.procs; fi
exec unshare --cgroup --mount sh -euc '
    if [ -n "$1" ]; then mount --bind "$2" "$1"; fi
    umount --lazy "$2"
    mount -t cgroup2 nvshare "$2"
    shift 2
    exec "$@"' sh "$2" "$3" "${@:4}"
'''


@pytest.mark.parametrize("mounts_the_hosts", [True, False])
def test_daemon_inside_a_pod_knows_the_tenants_of_other_pods(
    site: Site, groups: Path, mounts_the_hosts: bool
) -> None:
    host = made(site.folder / "host")
    kubepods = groups / "kubepods"
    own = made(kubepods / "besteffort" / f"pod{UID[::-1]}" / CONTAINER[::-1])
    site.before = ["bash", "-c", CONTAINED, "bash", str(own),
                   str(host) if mounts_the_hosts else "", str(cgroup.mount_point(""))]
    site.start("--trace", str(site.folder / "trace"))
    places = {
        made(kubepods / "besteffort" / f"pod{UID}" / CONTAINER): f"pod:{UID}",
        made(kubepods / "burstable" / f"pod{UID}" / CONTAINER): f"pod:{UID}",
        made(kubepods / f"pod{UID}" / CONTAINER): f"pod:{UID}",
        made(groups / "lab.slice" / "train.service"): "unit:train.service",
    }
    for group, name in places.items():
        program = workload(site, group, BOB, "--memory", "8MiB", "--steps", "1")
        program.communicate()
        assert program.returncode == 0
        wait_until(lambda pid=program.pid: bool(tenants(site, pid)))  # type: ignore[misc]
        assert tenants(site, program.pid) == [{name, f"user:{BOB}"}]
    for group in (delegated(groups / "lab" / "alice", ALICE), manager(groups, ALICE)):
        attacker = pretender(site, group, ALICE)
        for folders in (["kubepods", f"pod{UID}"], [f"pod{UID}"], ["besteffort", f"pod{UID}"]):
            says(attacker, " ".join(os.fsencode(name).hex() for name in folders), "was there")
        pid = attacker.popen.pid
        wait_until(lambda pid=pid: len(tenants(site, pid)) == 3)  # type: ignore[misc]
        assert all(found == {f"user:{ALICE}"} for found in tenants(site, pid))
    blind = "cannot be seen; mount the host's /sys/fs/cgroup" in site.log.read_text()
    assert blind != mounts_the_hosts


def test_cgroup_path_of_no_known_form_is_logged_once(site: Site, groups: Path) -> None:
    site.start("--trace", str(site.folder / "trace"))
    for number in range(3):
        task = made(groups / "engine" / f"task-{number}")
        program = workload(site, task, ALICE, "--memory", "8MiB", "--steps", "1")
        program.communicate()
        wait_until(lambda pid=program.pid: bool(tenants(site, pid)))  # type: ignore[misc]
        assert tenants(site, program.pid) == [{f"user:{ALICE}"}]
    said = [line for line in site.log.read_text().splitlines() if "which identifies no" in line]
    assert len(said) == 1
    assert f"{groups.name}/engine/task-0, which" in said[0]
