# SPDX-License-Identifier: Apache-2.0
"""SLURM's jobs share a GPU. Each job is a tenant with the terms of its shards or its option.

One machine is both controller and node, set up by the commands of docs/slurm.md.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import pages
from tests.system import card
from tests.system.conftest import USERS, leave_out
from tests.system.container import Container
from tests.system.packages import ROOT, Packages
from tests.system.tree import NoTree, prepared

FILES = ROOT / "packaging/slurm"
SHARDS = 8                              # shards of a card, as in packaging/slurm/gres.conf
MOST_OF_IT = card.MEMORY * 6 // 10      # MiB; two programs of this size exceed the card
NODE = "192.0.2.1"  # SLURM looks up host names only on a machine with an IP address

# SLURM refuses to start if control groups v1 are mounted besides v2, possibly by the machine
# that runs this container. So SLURM sees a list of mounts with the line of v2 alone.
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
SLURMDBD = """\
AuthType=auth/munge
DbdHost=gpuhost
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
"""
DATABASE = "CREATE DATABASE slurm_acct_db; GRANT ALL ON slurm_acct_db.* TO slurm@localhost " \
    "IDENTIFIED BY 'slurm'"
ACCOUNTED = "AccountingStorageType=accounting_storage/slurmdbd"
CONFIGURATION = "/etc/slurm/slurm.conf"
CHECKOUT = "/root/nvshared"
QUIET = {"DEBIAN_FRONTEND": "noninteractive"}
GROUP = "/sys/fs/cgroup/system.slice/gpuhost_slurmstepd.scope"
ACCOUNT = re.compile(r"nvshare on gpuhost: ([\d.]+) GPU seconds, waited ([\d.]+) seconds")


@pytest.fixture(scope="module")
def tree_with_slurm(request: pytest.FixtureRequest) -> Path:
    try:
        return prepared(
            "slurmctld", "slurmd", "slurm-client", "munge", "libslurm-dev", "slurmdbd",
            "mariadb-server", "make", "gcc", "libc6-dev")
    except NoTree as error:
        leave_out(request.config, str(error))


@pytest.fixture(scope="module")
def cluster(tree_with_slurm: Path, built: Packages) -> Iterator[Container]:
    """A machine with a GPU, set up by the commands of docs/slurm.md."""
    with Container(tree_with_slurm) as container:
        for user in USERS:
            container.run("useradd", "--create-home", "--shell", "/bin/bash", user)
        card.plug_in(container)
        container.run("mknod", "-m", "666", "/dev/nvidia0", "c", "195", "0")
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
        container.write("/etc/apt/apt.conf.d/yes", 'APT::Get::Assume-Yes "true";\n')
        for file in filter(Path.is_file, FILES.rglob("*")):
            container.copy(file, f"{CHECKOUT}/{file.relative_to(ROOT)}")
        for package in (built.nvshared, built.libnvshare):
            container.copy(package, f"{CHECKOUT}/dist/{package.name}")
        for block in (
            pages.block("docs/slurm.md", "apt install ./dist/libnvshare"),
            pages.block("docs/slurm.md", "apt install make"),
            pages.block("docs/slurm.md", "install -D"),
            pages.block("docs/slurm.md", "apt install slurmctld"),
            pages.block("docs/slurm.md", "systemctl restart")):
            container.run("bash", "-ec", f"cd {CHECKOUT}; {block}", environment=QUIET)
        # The jobs of a test need more processors than some machines have.
        container.run("sh", "-c", f"sed -i 's/CPUs=[0-9]*/CPUs=8/' {CONFIGURATION}; "
                      f"echo SlurmdParameters=config_overrides >>{CONFIGURATION}")
        container.run("systemctl", "restart", "slurmctld", "slurmd")
        container.until(lambda: node(container) == "idle", "the node is there")
        yield container


def node(container: Container) -> str:
    return container.run("sinfo", "--noheader", "--format=%T", check=False).stdout.strip()


class Job:
    """A batch job with a program that computes on the GPU and checks its results."""

    def __init__(
        self, container: Container, user: str, *options: str, memory: int, shards: int = 2,
        seed: int = 1, environment: dict[str, str] | None = None,
    ) -> None:
        """Starts a job that computes with `memory` MiB until finish()."""
        self.container = container
        self.user = user
        self.output = f"/home/{user}/{seed}.out"
        self.stdin_path = f"/home/{user}/{seed}.told"
        container.run("rm", "-f", self.output, self.stdin_path)
        workload = (
            f"{card.WORKLOAD} --json --memory {memory}MiB --chunk 8MiB --seed {seed} --rounds 1"
            " --until-told")
        script = (
            "#!/bin/sh\nenv; cat /proc/self/cgroup\n"
            f"until [ -e {self.stdin_path} ]; do sleep 0.1; done |\n"
            f"{{ {workload}; ended=$?; touch {self.stdin_path}; exit $ended; }}\n")
        done = container.run(
            "sbatch", "--parsable", f"--gres=shard:{shards}", f"--output={self.output}",
            "--chdir", f"/home/{user}", *options,
            user=user, given=script, environment=card.ENVIRONMENT | (environment or {}))
        self.id = int(done.stdout)
        self.tenant = f"job:{self.id}"

    @property
    def said(self) -> str:
        return self.container.run("cat", self.output, check=False).stdout

    @property
    def state(self) -> str:
        return self.field("JobState")

    def field(self, name: str) -> str:
        shown = self.container.output("scontrol", "show", "job", str(self.id))
        found = re.search(rf"\b{name}=(.*?)(?=\s+\w+=|\s*$)", shown, re.MULTILINE)
        return found[1] if found else ""

    @property
    def client(self) -> dict[str, Any]:
        """The job's program in nvshared's list of clients; empty if it is not there."""
        found = [one for one in card.clients(self.container) if one["tenant"] == self.tenant]
        return found[0] if found else {}

    @property
    def steps(self) -> int:
        return self.said.count('"event": "step"')

    def await_memory(self) -> None:
        self.container.until(lambda: '"allocated"' in self.said, f"{self.tenant} has its memory")

    def finish(self) -> None:
        """Ends the job's program. Fails unless its results were right."""
        self.container.run("touch", self.stdin_path, user=self.user)
        self.container.until(
            lambda: self.state not in ("RUNNING", "PENDING", "COMPLETING", "SUSPENDED"),
            f"{self.tenant} has ended")
        checked = [line for line in self.said.splitlines() if '"checked"' in line]
        assert self.state == "COMPLETED", self.said
        assert [json.loads(line)["right"] for line in checked] == [True], self.said


def terms(container: Container, tenant: str) -> dict[str, int]:
    found = json.loads(container.output("nvsharectl", "tenants", "--explain", tenant, "--json"))
    return {one["name"]: one["value"] for one in found["terms"]}


def test_jobs_that_do_not_fit_the_card_together_take_turns_with_right_results(
    cluster: Container
) -> None:
    cluster.run("nvsharectl", "set-tq", "1")
    # A text of the job's user is not taken for the administrator's comment.
    jobs = [
        Job(cluster, user, "--nvshare=memory=none", "--comment=x\n   AdminComment=paid",
            memory=MOST_OF_IT, seed=seed)
        for seed, user in enumerate(USERS, 1)
    ]
    for job in jobs:
        job.await_memory()
    assert {one["tenant"] for one in card.clients(cluster)} == {job.tenant for job in jobs}
    cluster.until(lambda: all(job.client["turns"] > 1 for job in jobs), "they take turns")
    for job in jobs:
        job.finish()
    for job in jobs:
        cluster.until(lambda: job.field("AdminComment"), "it is accounted")  # noqa: B023
        used = ACCOUNT.fullmatch(job.field("AdminComment"))
        assert used, job.field("AdminComment")
        assert float(used[1]) > 0
        assert float(used[2]) > 0
    assert [terms(cluster, job.tenant) for job in jobs] == [{}, {}]


def test_job_has_the_memory_limit_of_its_shards_unless_its_nvshare_option_gives_another(
    cluster: Container
) -> None:
    usual = Job(cluster, "alice", memory=16, shards=3, seed=1)
    asked = Job(
        cluster, "bob", "--nvshare=memory=100M,compute=50,priority=background",
        memory=16, shards=3, seed=2, environment={"LD_PRELOAD": "libSegFault.so"})
    for job in (usual, asked):
        job.await_memory()
    share = card.MEMORY * 3 // SHARDS
    assert terms(cluster, usual.tenant) == {"memory-limit": share << 20, "weight": 300}
    assert terms(cluster, asked.tenant) == {
        "memory-limit": 100 << 20, "weight": 300, "compute-limit": 50, "priority": 1}
    assert "set by job" in cluster.output("nvsharectl", "tenants", "--explain", usual.tenant)
    assert "LD_PRELOAD=libnvshare.so\n" in usual.said
    assert "LD_PRELOAD=libSegFault.so:libnvshare.so\n" in asked.said
    assert f"gpuhost_slurmstepd.scope/job_{usual.id}/step_batch/" in usual.said
    for job in (usual, asked):
        job.finish()


def test_job_that_requests_a_shard_without_a_number_has_the_memory_limit_of_one_shard(
    cluster: Container
) -> None:
    job = Job(cluster, "alice", "--gres=shard", memory=16)
    job.await_memory()
    assert terms(cluster, job.tenant)["memory-limit"] == card.MEMORY // SHARDS << 20
    job.finish()


def test_commands_of_the_slurm_page_submit_and_show_jobs(cluster: Container) -> None:
    for line in (*pages.block("docs/slurm.md", "Name=gpu").splitlines(),
                 *pages.block("docs/slurm.md", "GresTypes").splitlines()):
        assert line in (FILES / "gres.conf").read_text() + (FILES / "slurm.conf").read_text()
    job = Job(cluster, "alice", memory=16)
    job.await_memory()
    shown = pages.block("docs/slurm.md", "nvsharectl tenants").replace("4711", str(job.id))
    assert f"{job.tenant}: 1 program" in cluster.output("bash", "-ec", shown)
    job.finish()
    script = "#!/bin/sh\nenv; touch $SLURM_JOB_ID.train\n"
    cluster.run("tee", "/home/bob/train.sh", user="bob", given=script)
    submit = "cd; " + pages.block("docs/slurm.md", "sbatch")
    numbers = re.findall(r"job (\d+)", cluster.output("bash", "-ec", submit, user="bob"))
    assert len(numbers) == 2
    for number in numbers:
        cluster.until(
            lambda: cluster.run("test", "-e", f"/home/bob/{number}.train", check=False)  # noqa: B023
            .returncode == 0, "the job of the page runs")
        assert "LD_PRELOAD=libnvshare.so" in cluster.output("cat", f"/home/bob/slurm-{number}.out")


def test_slurm_job_gets_the_nvshare_environment_only_with_shards_or_an_nvshare_option(
    cluster: Container
) -> None:
    said = cluster.output("srun", "env", user="alice")
    assert "nvshare" not in said
    asked = cluster.output("srun", "--nvshare=weight=50", "env", user="alice")
    assert "LD_PRELOAD=libnvshare.so" in asked


def test_job_beyond_its_memory_limit_gets_out_of_memory_and_logs_the_reason(
    cluster: Container
) -> None:
    job = Job(cluster, "alice", "--nvshare=memory=40MiB", memory=64)
    cluster.until(lambda: job.state == "FAILED", "it has failed")
    assert f"all programs of {job.tenant} together are limited to 40MiB" in job.said
    assert "out of memory" in job.said


def test_job_with_an_invalid_nvshare_option_is_refused_with_the_reason(cluster: Container) -> None:
    for command in (["sbatch", "--wrap=true"], ["srun", "true"]):
        done = cluster.run(
            command[0], "--nvshare=weight=1001", command[1], user="alice", check=False)
        assert done.returncode != 0
        assert "error: --nvshare: weight cannot be \"1001\", give a whole number" in done.stderr
        assert "Submitted" not in done.stdout   # jobs of earlier tests may still be ending


def test_each_job_of_a_slurm_array_has_its_own_gpu_time(cluster: Container) -> None:
    script = f"#!/bin/sh\n{card.WORKLOAD} --memory 16MiB --steps $((50 * SLURM_ARRAY_TASK_ID))\n"
    array = cluster.run(
        "sbatch", "--parsable", "--array=1,4", "--gres=shard:2", "--chdir=/home/alice",
        user="alice", given=script, environment=card.ENVIRONMENT).stdout.strip()

    def used() -> list[str]:
        found = ACCOUNT.findall(cluster.output("scontrol", "show", "job", array))
        return [seconds for seconds, _ in found]

    cluster.until(lambda: len(used()) == 2, "both are accounted")
    cluster.until(lambda: node(cluster) == "idle", "both have ended")
    assert used()[0] != used()[1]


def test_sbatch_help_explains_the_nvshare_option(cluster: Container) -> None:
    said = cluster.output("sbatch", "--help")
    assert "--nvshare=TERM=VALUE" in said
    assert "weight=NUMBER" in said
    assert "\t" not in said
    assert max(map(len, said.splitlines())) <= 100


def test_suspended_job_is_evicted_for_another_and_resumes_with_right_results(
    cluster: Container
) -> None:
    whole = "--nvshare=memory=none"
    one = Job(cluster, "alice", whole, memory=MOST_OF_IT, seed=1)
    one.await_memory()
    cluster.run("scontrol", "suspend", str(one.id))
    cluster.until(lambda: one.client.get("state") == "suspended", "it is suspended")
    events = f"{GROUP}/job_{one.id}/step_batch/user/cgroup.events"
    cluster.until(lambda: "frozen 1" in cluster.output("cat", events), "its processes are stopped")
    assert (one.state, one.client["resident"]) == ("SUSPENDED", 0)
    two = Job(cluster, "bob", whole, memory=MOST_OF_IT, seed=2)
    two.await_memory()
    cluster.until(lambda: two.client["resident"] >= MOST_OF_IT << 20, "the other has the card")
    # A suspended job stays suspended when nvshared, which suspended the job, restarts.
    cluster.run("systemctl", "restart", "nvshared")
    cluster.until(lambda: two.client, "the other is known again")
    stood = one.steps
    two.finish()
    assert one.steps == stood
    cluster.run("scontrol", "resume", str(one.id))
    cluster.until(lambda: one.steps > stood, "it goes on")
    one.finish()


def test_killed_job_leaves_no_terms_and_has_usage_in_the_history(cluster: Container) -> None:
    job = Job(cluster, "alice", "--nvshare=weight=7", memory=16)
    job.await_memory()
    cluster.run("nvsharectl", "limit", job.tenant, "--request", "30")
    cluster.run("scancel", "--signal=KILL", "--full", str(job.id))
    gone(job)
    # SLURM stores no comment for a cancelled job, but nvshared has the job's usage.
    used = cluster.output("nvsharectl", "history", "--by=tenant", "--csv")
    assert f",{job.tenant},alice," in used


@pytest.fixture(scope="module")
def accounting(cluster: Container) -> Container:
    """The cluster with slurmdbd, which also runs in the later tests."""
    cluster.write("/etc/slurm/slurmdbd.conf", SLURMDBD, 0o600)
    cluster.run("chown", "slurm:", "/etc/slurm/slurmdbd.conf")
    cluster.run("systemctl", "start", "mariadb")
    cluster.run("mariadb", given=DATABASE)
    cluster.run("sh", "-c", f"echo {ACCOUNTED} >> {CONFIGURATION}")
    cluster.run("systemctl", "restart", "slurmdbd")
    cluster.until(
        lambda: cluster.run("sacctmgr", "show", "cluster", check=False).returncode == 0,
        "the accounting is there")
    cluster.run("systemctl", "restart", "slurmctld", "slurmd")
    cluster.until(lambda: node(cluster) == "idle", "the node is there")
    return cluster


@pytest.mark.parametrize(("option", "state"), [("--nice", "CANCELLED"), ("--time=1", "TIMEOUT")])
def test_ended_job_has_gpu_time_in_the_accounting(
    accounting: Container, option: str, state: str
) -> None:
    job = Job(accounting, "alice", option, memory=16)
    job.await_memory()
    if state == "CANCELLED":
        accounting.run("scancel", str(job.id))

    def noted() -> str:
        return accounting.output(
            "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job.id}",
            "--format=State,AdminComment")

    accounting.until(lambda: "seconds" in noted(), "it is accounted")
    ended, _, comment = noted().strip().partition("|")
    assert ended.startswith(state)
    # sacctmgr converts comments to lower case.
    assert ACCOUNT.fullmatch(comment.replace("gpu seconds", "GPU seconds")), comment
    gone(job)


def gone(job: Job) -> None:
    """Returns when an ended job has no terms and no client, and the node is free."""
    job.container.until(lambda: not terms(job.container, job.tenant), "nothing is set for it")
    job.container.until(lambda: node(job.container) == "idle", "the node is free")
    assert card.clients(job.container) == []


def test_job_lost_by_the_controller_leaves_no_terms(cluster: Container) -> None:
    job = Job(cluster, "alice", memory=16)
    job.await_memory()
    cluster.run("systemctl", "stop", "slurmctld")
    cluster.run("sh", "-c", "rm -r /var/lib/slurm/slurmctld/*")
    cluster.run("systemctl", "start", "slurmctld")
    gone(job)


def test_jobs_keep_terms_through_a_restart_of_slurm_and_nvshared(cluster: Container) -> None:
    job = Job(cluster, "alice", memory=16)
    job.await_memory()
    before = terms(cluster, job.tenant)
    cluster.run("systemctl", "restart", "slurmd", "nvshared", "slurmctld")
    cluster.until(lambda: job.client, "it is known again")
    assert terms(cluster, job.tenant) == before
    stood = job.steps
    cluster.until(lambda: job.steps > stood, "it goes on")
    job.finish()
    cluster.until(lambda: not terms(cluster, job.tenant), "nothing is set for it")


def test_prolog_reports_refused_terms_and_the_job_gets_the_terms_of_the_tenant_rule(
    cluster: Container
) -> None:
    cluster.write(
        "/etc/nvshare/nvshared.conf.d/jobs.conf", "[tenant job:*]\ncompute-request = 30\n")
    cluster.run("systemctl", "reload", "nvshared")
    try:
        job = Job(cluster, "alice", "--nvshare=compute=10,weight=70", memory=16)
        job.await_memory()
        held = terms(cluster, job.tenant)
        job.finish()
        assert held == {
            "memory-limit": card.MEMORY * 2 // SHARDS << 20, "weight": 70, "compute-request": 30}
        assert re.search(
            "^nvshare: --nvshare: compute-limit=10 is refused, .*contradicts", job.said,
            re.MULTILINE)
        said = cluster.run(
            "srun", "--gres=shard:2", "--nvshare=compute=10", "true", user="alice").stderr
        assert said.count("nvshare: --nvshare: compute-limit=10 is refused") == 1
    finally:
        cluster.run("rm", "/etc/nvshare/nvshared.conf.d/jobs.conf")
        cluster.run("systemctl", "reload", "nvshared")
    cluster.until(lambda: node(cluster) == "idle", "the node is free")
    assert cluster.output("ls", "/run/nvshare-slurm") == ""


@pytest.mark.parametrize(("given", "sentence"), [
    ({"_SLURM_SPANK_OPTION_nvshare_nvshare": "memory=nonsense"}, "memory cannot be"),
    ({"LD_PRELOAD": "x" * 70_000}, "LD_PRELOAD of the job is too long"),
])
def test_slurm_step_with_options_that_bypassed_the_submit_check_fails_without_node_drain(
    cluster: Container, given: dict[str, str], sentence: str
) -> None:
    job = Job(cluster, "alice", memory=16, environment=given)
    cluster.until(lambda: job.state not in ("RUNNING", "PENDING", "COMPLETING"), "it has ended")
    assert job.state == "FAILED"
    assert sentence in job.said
    cluster.until(lambda: node(cluster) == "idle", "the node is free and not drained")


@pytest.fixture
def disk_full(cluster: Container) -> Iterator[None]:
    """Makes nvshared's state directory unwritable, as with a full disk."""
    cluster.run("mount", "-t", "tmpfs", "-o", "size=4k,mode=777", "full", "/var/lib/nvshare")
    cluster.run("systemctl", "restart", "nvshared")
    cluster.run("sh", "-c", "dd if=/dev/zero of=/var/lib/nvshare/full bs=1k; true")
    yield
    cluster.run("umount", "--lazy", "/var/lib/nvshare")
    cluster.run("systemctl", "restart", "nvshared")


@pytest.mark.usefixtures("disk_full")
def test_prolog_and_epilog_succeed_while_the_disk_is_full(cluster: Container) -> None:
    job = Job(cluster, "alice", "--nvshare=weight=70", memory=16)
    job.await_memory()
    assert terms(cluster, job.tenant)["weight"] == 70
    assert "nvshare: " not in job.said
    job.finish()
    gone(job)


def stop_by_mask(cluster: Container) -> Callable[[], object]:
    """Stops nvshared and masks its units, so that no connection can start it."""
    cluster.run("systemctl", "mask", "--runtime", "--now", "nvshared.service", "nvshared.socket")
    return lambda: cluster.run(
        "systemctl", "unmask", "--runtime", "nvshared.service", "nvshared.socket")


def hang(cluster: Container) -> Callable[[], object]:
    """Stops nvshared's process by SIGSTOP, so that it accepts calls but never answers."""
    cluster.run("systemctl", "kill", "--signal=STOP", "nvshared")
    return lambda: cluster.run("systemctl", "kill", "--signal=CONT", "nvshared")


def break_configuration(cluster: Container) -> Callable[[], object]:
    """Writes an invalid configuration, with which nvshared cannot start."""
    cluster.write("/etc/nvshare/nvshared.conf.d/broken.conf", "[gpu]\nreserve = much\n")
    cluster.run("systemctl", "stop", "nvshared.service", "nvshared.socket")
    return lambda: cluster.run("rm", "/etc/nvshare/nvshared.conf.d/broken.conf")


@pytest.mark.parametrize("trouble", [stop_by_mask, hang, break_configuration])
def test_job_starts_and_waits_while_nvshared_does_not_answer(
    cluster: Container, trouble: Callable[[Container], Callable[[], object]]
) -> None:
    mend = trouble(cluster)
    try:
        job = Job(cluster, "alice", memory=16)
        cluster.until(lambda: "nvshare: nvshared does not answer" in job.said, "the user is told")
        assert '"allocated"' not in job.said
        assert "drain" not in node(cluster)
    finally:
        mend()
    cluster.run("systemctl", "reset-failed", "nvshared", check=False)
    cluster.run("systemctl", "start", "nvshared")
    job.await_memory()
    job.finish()
    gone(job)


def test_epilog_without_nvshared_succeeds_and_the_next_job_removes_the_ended_jobs_terms(
    cluster: Container
) -> None:
    job = Job(cluster, "alice", "--nvshare=weight=70", memory=16)
    job.await_memory()
    cluster.run("scancel", str(job.id))
    mend = stop_by_mask(cluster)
    cluster.until(lambda: node(cluster) == "idle", "the node is free and not drained")
    mend()
    cluster.run("systemctl", "start", "nvshared")
    cluster.run("srun", "--gres=shard:2", "true", user="bob")
    cluster.until(lambda: not terms(cluster, job.tenant), "the next job has given them back")


def test_failing_prolog_with_drain_on_failure_drains_the_slurm_node(cluster: Container) -> None:
    line = "required spank_nvshare.so drain-on-failure\n"
    before = cluster.output("cat", "/etc/slurm/plugstack.conf.d/nvshare.conf")
    # An epilog of the last job that reads the new line would fail, too.
    cluster.until(lambda: node(cluster) == "idle", "no epilog runs")
    cluster.write("/etc/slurm/plugstack.conf.d/nvshare.conf", line)
    mend = stop_by_mask(cluster)
    try:
        job = Job(cluster, "alice", memory=16)
        cluster.until(lambda: "drain" in node(cluster), "the node is drained")
        assert '"allocated"' not in job.said
        assert "Prolog" in cluster.output("sinfo", "--noheader", "--format=%E")
        cluster.run("scancel", str(job.id))
    finally:
        mend()
        cluster.write("/etc/slurm/plugstack.conf.d/nvshare.conf", before)
    cluster.run("systemctl", "start", "nvshared")
    cluster.run("scontrol", "update", "NodeName=gpuhost", "State=RESUME")
    cluster.until(lambda: node(cluster) == "idle", "the node is back")


def test_slurm_plugin_ignores_and_logs_wrong_terms_in_plugstack_conf(cluster: Container) -> None:
    before = cluster.output("cat", "/etc/slurm/plugstack.conf.d/nvshare.conf")
    cluster.write(
        "/etc/slurm/plugstack.conf.d/nvshare.conf", "required spank_nvshare.so nonsense weight=7\n")
    try:
        job = Job(cluster, "alice", memory=16)
        job.await_memory()
        assert terms(cluster, job.tenant)["weight"] == 7
        job.finish()
        assert 'in plugstack.conf, "nonsense"' in cluster.output("journalctl", "--no-pager")
    finally:
        cluster.write("/etc/slurm/plugstack.conf.d/nvshare.conf", before)


def set_up_cards(cluster: Container, gres: str, node_has: str, memory: str) -> dict[str, str]:
    """Plugs two cards of these sizes in, and gives SLURM this gres.conf. Returns the variables of a
    program that uses the cards."""
    cards = {"NVSHARE_SIM_GPUS": "2", "NVSHARE_SIM_MEMORY": memory}
    card.drop_in(cluster, "the-cards", "".join(
        f"Environment={name}={value}\n" for name, value in cards.items()))
    cluster.run("sh", "-c", "[ -e /dev/nvidia1 ] || mknod -m 666 /dev/nvidia1 c 195 1")
    cluster.write("/etc/slurm/gres.conf", gres)
    cluster.run("sed", "-i", f"s/ Gres=[^ ]*/ Gres={node_has}/", CONFIGURATION)
    cluster.run("systemctl", "stop", "slurmd", "slurmctld")
    cluster.run("systemctl", "restart", "nvshared")
    cluster.run("systemctl", "start", "slurmctld", "slurmd")
    cluster.until(lambda: node(cluster) == "idle", "the node is there")
    return cards


def test_jobs_with_many_shards_are_spread_over_two_named_cards(cluster: Container) -> None:
    cards = set_up_cards(
        cluster, "Name=gpu Type=sim File=/dev/nvidia[0-1]\nName=shard Count=16\n",
        "gpu:sim:2,shard:16", f"{card.MEMORY}M")
    jobs = [
        Job(cluster, user, memory=16, shards=SHARDS - 2, seed=seed, environment=cards)
        for seed, user in enumerate(USERS, 1)
    ]
    for job in jobs:
        job.await_memory()
        assert terms(cluster, job.tenant) == {
            "memory-limit": card.MEMORY * (SHARDS - 2) // SHARDS << 20, "weight": 600}
    # All shards of a job are on one card, and a card has too few shards for two of these jobs.
    assert {job.client["gpu"] for job in jobs} == {0, 1}
    for job in jobs:
        job.finish()


@pytest.fixture
def crossed(cluster: Container) -> Iterator[dict[str, str]]:
    """Two cards of different memory. NVML's first is /dev/nvidia1, SLURM's is /dev/nvidia0."""
    cards = set_up_cards(
        cluster, "Name=gpu File=/dev/nvidia[0-1]\nName=shard Count=4 File=/dev/nvidia0\n"
        f"Name=shard Count={SHARDS} File=/dev/nvidia1\n", f"gpu:2,shard:{SHARDS + 4}",
        f"{card.MEMORY}M,{card.MEMORY // 2}M")
    cluster.run("mount", "-t", "tmpfs", "tmpfs", "/proc/driver")
    for one in card.status(cluster)["gpus"]:
        cluster.write(
            f"/proc/driver/nvidia/gpus/{one['index']}/information",
            f"GPU UUID: \t {one['uuid']}\nDevice Minor: \t {1 - one['index']}\n")
    yield cards
    cluster.run("umount", "/proc/driver")


def test_job_has_the_limit_of_its_own_card_where_slurm_and_nvml_number_the_cards_differently(
    cluster: Container, crossed: dict[str, str]
) -> None:
    jobs = []
    # The first job has more shards than /dev/nvidia0, the second more than the first leaves.
    for shards, user in ((SHARDS - 2, "alice"), (3, "bob")):
        jobs.append(Job(
            cluster, user, memory=16, shards=shards, seed=shards, environment=crossed))
        jobs[-1].await_memory()
    assert [terms(cluster, job.tenant)["memory-limit"] >> 20 for job in jobs] == [
        card.MEMORY * (SHARDS - 2) // SHARDS, card.MEMORY // 2 * 3 // 4]
    for job in jobs:
        assert "nvshare: " not in job.said
        job.finish()
