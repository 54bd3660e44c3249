# SPDX-License-Identifier: Apache-2.0
"""SLURM's jobs share a GPU: each is a tenant, with its share of the card or what it asked for.

A controller and a node in one, with the files of packaging/slurm as docs/slurm.md installs them.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system import card
from tests.system.conftest import USERS, install, leave_out
from tests.system.container import Container
from tests.system.packages import ROOT, TRIPLET, Packages
from tests.system.tree import NoTree, prepared

FILES = ROOT / "packaging/slurm"
PLUGINS = f"/usr/lib/{TRIPLET}/slurm-wlm"
SHARDS = 8                              # as in packaging/slurm/gres.conf
MOST_OF_IT = card.MEMORY * 6 // 10      # MiB; two of these do not fit together
NODE = "192.0.2.1"                      # SLURM looks up names only where there is an address

# SLURM refuses to start where other control groups are mounted besides the unified ones, which the
# machine under this container may have. So the one line that it wants is all that it sees.
ONE_LINE = """\
#!/bin/sh
echo 0::{group} >/run/{name}.cgroup
mount --bind /run/{name}.cgroup /proc/$$/cgroup && exec /usr/sbin/{name} "$@"
"""
SLURMD = """\
[Service]
ExecStart=
ExecStart=/usr/local/sbin/slurmd -D -s -d /usr/local/sbin/slurmstepd
"""
GROUPS = {
    "slurmd": "/system.slice/slurmd.service",
    "slurmstepd": "/system.slice/gpuhost_slurmstepd.scope/system",
}


@pytest.fixture(scope="module")
def plugins(tree_with_slurm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make -C packaging/slurm install` installs, built with the headers of that tree."""
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run(
        ["make", "-s", "-C", str(FILES), "install", f"BUILD={folder}/build",
         f"DESTDIR={folder}/root", f"SLURM_INCLUDE={tree_with_slurm}/usr/include"],
        check=True,
    )
    return folder / "root"


@pytest.fixture(scope="module")
def tree_with_slurm(request: pytest.FixtureRequest) -> Path:
    """The tree, with SLURM on it."""
    try:
        return prepared("slurmctld", "slurmd", "slurm-client", "munge", "libslurm-dev")
    except NoTree as error:
        leave_out(request.config, str(error))


@pytest.fixture(scope="module")
def cluster(tree_with_slurm: Path, plugins: Path, built: Packages) -> Iterator[Container]:
    """A machine with a GPU, nvshared and SLURM, all running."""
    with Container(tree_with_slurm) as container:
        for user in USERS:
            container.run("useradd", "--create-home", "--shell", "/bin/bash", user)
        install(container, built)
        card.plug_in(container)
        container.run("mknod", "-m", "666", "/dev/nvidia0", "c", "195", "0")
        for file in filter(Path.is_file, plugins.rglob("*")):
            container.copy(file, f"/{file.relative_to(plugins)}")
        for name in ("gres.conf", "cgroup.conf"):
            container.copy(FILES / name, f"/etc/slurm/{name}")
        container.copy(FILES / "plugstack.conf", "/etc/slurm/plugstack.conf.d/nvshare.conf")
        # The processors that it names are more than some machines have.
        slurm = (FILES / "slurm.conf").read_text() + "SlurmdParameters=config_overrides\n"
        container.write("/etc/slurm/slurm.conf", slurm)
        for name, group in GROUPS.items():
            text = ONE_LINE.format(name=name, group=group)
            container.write(f"/usr/local/sbin/{name}", text, 0o755)
        container.write("/etc/systemd/system/slurmd.service.d/one-hierarchy.conf", SLURMD)
        container.write("/etc/hosts", f"127.0.0.1 localhost\n{NODE} gpuhost\n")
        container.write(
            "/etc/systemd/network/lo.network", f"[Match]\nName=lo\n[Network]\nAddress={NODE}/32\n")
        container.run("systemctl", "daemon-reload")
        container.run("systemctl", "start", "systemd-networkd")
        container.until(
            lambda: NODE in container.output("getent", "ahosts", "gpuhost"), "it has its address")
        container.run("systemctl", "enable", "--now", "nvshared")
        container.run("systemctl", "restart", "munge", "slurmctld", "slurmd")
        container.until(lambda: node(container) == "idle", "the node is there")
        yield container


def node(container: Container) -> str:
    """What the controller says of the node."""
    return container.run("sinfo", "--noheader", "--format=%T", check=False).stdout.strip()


class Job:
    """A batch job whose program computes on the GPU and knows whether its results are right."""

    def __init__(
        self, container: Container, user: str, *options: str, memory: int, shards: int = 2,
        seed: int = 1, environment: dict[str, str] | None = None,
    ) -> None:
        """It computes until finish(), with `memory` MiB."""
        self.container = container
        self.output = f"/home/{user}/{seed}.out"
        self.until_there = f"/home/{user}/{seed}.go"
        container.run("rm", "-f", self.output, self.until_there)
        workload = (
            f"{card.WORKLOAD} --json --memory {memory}MiB --chunk 8MiB --seed {seed} --rounds 1"
            " --until-told")
        script = (
            "#!/bin/sh\nenv; cat /proc/self/cgroup\n"
            f"until [ -e {self.until_there} ]; do sleep 0.1; done | {workload}\n")
        done = container.run(
            "sbatch", "--parsable", f"--gres=shard:{shards}", f"--output={self.output}",
            "--chdir", f"/home/{user}", *options,
            user=user, given=script, environment=card.ENVIRONMENT | (environment or {}),
        )
        self.id = int(done.stdout)
        self.tenant = f"job:{self.id}"

    @property
    def said(self) -> str:
        """All that it printed."""
        return self.container.run("cat", self.output, check=False).stdout

    @property
    def state(self) -> str:
        """RUNNING, COMPLETED, …"""
        return self.field("JobState")

    def field(self, name: str) -> str:
        """What the controller says of it."""
        shown = self.container.output("scontrol", "show", "job", str(self.id))
        found = re.search(rf"\b{name}=(.*?)(?=\s+\w+=|\n|$)", shown)
        return found[1] if found else ""

    @property
    def client(self) -> dict[str, Any]:
        """Its program as nvshared sees it; empty if there is none."""
        found = [one for one in card.clients(self.container) if one["tenant"] == self.tenant]
        return found[0] if found else {}

    @property
    def steps(self) -> int:
        """How far it has come."""
        return self.said.count('"event": "step"')

    def await_memory(self) -> None:
        """Returns when it has all of its memory."""
        self.container.until(lambda: '"allocated"' in self.said, f"{self.tenant} has its memory")

    def finish(self) -> None:
        """Has it end, and fails unless it was right."""
        self.container.run("touch", self.until_there)
        self.container.until(
            lambda: self.state not in ("RUNNING", "PENDING", "COMPLETING", "SUSPENDED"),
            f"{self.tenant} has ended")
        checked = [line for line in self.said.splitlines() if '"checked"' in line]
        assert self.state == "COMPLETED", self.said
        assert [json.loads(line)["right"] for line in checked] == [True], self.said


def terms(container: Container, tenant: str) -> dict[str, int]:
    """What is set for a tenant."""
    found = json.loads(container.output("nvsharectl", "tenants", "--explain", tenant, "--json"))
    return {one["name"]: one["value"] for one in found["terms"]}


def test_two_jobs_that_fill_the_card_share_it_and_are_right(cluster: Container) -> None:
    cluster.run("nvsharectl", "set-tq", "1")
    jobs = [
        Job(cluster, user, "--nvshare=memory=none", memory=MOST_OF_IT, seed=seed)
        for seed, user in enumerate(USERS, 1)
    ]
    for job in jobs:
        job.await_memory()
    assert {one["tenant"] for one in card.clients(cluster)} == {job.tenant for job in jobs}
    cluster.until(lambda: all(job.client["turns"] > 1 for job in jobs), "they take turns")
    for job in jobs:
        job.finish()
    cluster.until(lambda: not card.clients(cluster), "both are gone")
    assert [terms(cluster, job.tenant) for job in jobs] == [{}, {}]
