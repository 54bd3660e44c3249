# SPDX-License-Identifier: Apache-2.0
"""Programs of tenants with save-at-shutdown = on go on after the machine has been started anew."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.programs import PRELUDE
from tests.system import card, criu
from tests.system.conftest import USERS, install, leave_out
from tests.system.container import GROUPS, OPTIONS, Container
from tests.system.packages import LIBRARY, Packages
from tests.system.tree import NoTree

PROGRAM, WORK = "/usr/local/lib/steps.py", "/var/tmp/work"
# For each file FOLDER/step-N: verifies that each byte of MIB MiB is N, makes it N + 1, and writes
# how many were wrong to out-N.
CODE = PRELUDE + '''
import time
folder, size = sys.argv[1], int(sys.argv[2]) * MIB
call("cuInit", c_uint(0))
context = c_void_p()
call("cuDevicePrimaryCtxRetain", byref(context), c_int(0))
call("cuCtxSetCurrent", context)
memory = allocate(size)
call("cuMemsetD8_v2", memory, ctypes.c_ubyte(0), size)
copy = ctypes.create_string_buffer(size)
step = 0
while True:
    while not os.path.exists(f"{folder}/step-{step}"):
        time.sleep(0.02)
    call("cuMemcpyDtoH_v2", copy, memory, size)
    wrong = size - copy.raw.count(step)
    call("cuMemsetD8_v2", memory, ctypes.c_ubyte(step + 1), size)
    with open(f"{folder}/fresh", "w") as file:
        file.write(str(wrong))
    os.rename(f"{folder}/fresh", f"{folder}/out-{step}")
    step += 1
'''
# The driver's state of a process is in the process; the simulated one's is in this folder, too.
SIMULATOR = "/var/lib/simulator"
MEMORY = 32                             # MiB of each program


# CRIU wants to write these, which are the container's own.
WRITABLE = "ns_last_pid sem_next_id msg_next_id shm_next_id"
OPEN_FILES = f"""
for name in {WRITABLE}; do
    mount --bind $name $name && mount -o remount,bind,rw $name || exit
done
"""


class Machine(Container):
    """One on which CRIU works: it suspends programs' seccomp filters only if it has none itself."""

    groups = "export SYSTEMD_SECCOMP=0\n" + GROUPS
    options = OPTIONS.replace("CAP_BPF", "CAP_BPF,CAP_CHECKPOINT_RESTORE,CAP_SYS_TIME")


@pytest.fixture(scope="module")
def machine(request: pytest.FixtureRequest, tree: Path, built: Packages) -> Iterator[Container]:
    if not criu.is_possible():
        leave_out(request.config, "CRIU is installed by apt-get, on x86-64")
    with Machine(tree) as machine:
        try:
            criu.install(machine)
        except NoTree as error:
            leave_out(request.config, str(error))
        install(machine, built)
        card.plug_in(machine)
        machine.run("sh", "-c", f"mkdir {SIMULATOR}; touch {SIMULATOR}/gpus; "
                    f"chmod 666 {SIMULATOR}/gpus; rm /etc/tmpfiles.d/simulator.conf")
        setting = f"Environment=NVSHARE_SIM_DIR={SIMULATOR}\nReadWritePaths={SIMULATOR}\n"
        card.drop_in(machine, "simulator2", setting)
        lines = "".join(f"Environment={name}={value}\n" for name, value in card.ENVIRONMENT.items())
        machine.write("/etc/systemd/system/nvshare-checkpoint@.service.d/simulator.conf",
                      f"[Service]\n{lines}{setting}")
        machine.write("/usr/local/lib/open-files", OPEN_FILES)
        machine.write("/etc/systemd/system/nvshare-saved.service.d/criu.conf", (
            "[Service]\nWorkingDirectory=/proc/sys/kernel\n"
            "ExecStartPre=sh /usr/local/lib/open-files\n"))
        machine.write(PROGRAM, CODE)
        for user in USERS:
            machine.run("useradd", "--create-home", user)
            machine.run("loginctl", "enable-linger", user)
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "enable", "--now", "nvshared")
        yield machine


class Program:
    """A program of a user's service manager; of the system's for root."""

    def __init__(self, machine: Container, user: str, number: int) -> None:
        self.machine, self.user, self.folder, self.steps = machine, user, f"{WORK}/{number}", 0
        machine.run("mkdir", "-p", self.folder)
        machine.run("chown", user or "root", self.folder)
        settings = [*card.ENVIRONMENT.items(), ("NVSHARE_SIM_DIR", SIMULATOR),
                    ("LD_PRELOAD", LIBRARY)]
        # A transient unit of the system is no part of multi-user.target.
        manager = ["--user"] if user else ["--property=Before=nvshare-saved.service"]
        start = ["systemd-run", *manager, f"--unit=program-{number}", "--quiet",
                 f"--property=StandardOutput=append:{self.folder}/log",
                 f"--property=StandardError=append:{self.folder}/log",
                 *(f"--setenv={name}={value}" for name, value in settings),
                 "python3", PROGRAM, self.folder, str(MEMORY)]
        uid = machine.output("id", "-u", user or "root")
        machine.until(lambda: not user or machine.run(
            "test", "-S", f"/run/user/{uid}/systemd/private", check=False).returncode == 0,
            "its manager is there")
        machine.run(*start, user=user, environment={"XDG_RUNTIME_DIR": f"/run/user/{uid}"})
        assert self.step() == "0"
        (self.pid,) = (one["pid"] for one in card.clients(machine)
                       if self.folder in machine.output("cat", f"/proc/{one['pid']}/cmdline"))
        self.identity = self.who()

    def who(self) -> str:
        return self.machine.output(
            "grep", "-E", "^(Name|Uid|Gid|Groups|CapPrm):", f"/proc/{self.pid}/status")

    def step(self) -> str:
        self.machine.run("touch", f"{self.folder}/step-{self.steps}")
        path = f"{self.folder}/out-{self.steps}"
        self.machine.until(
            lambda: self.machine.run("test", "-e", path, check=False).returncode == 0,
            "the program answers")
        self.steps += 1
        return self.machine.output("cat", path)


def test_five_programs_saved_at_shutdown_go_on_after_a_reboot(machine: Container) -> None:
    # Numbers of processes begin anew at a reboot, and the programs need theirs.
    machine.run("sh", "-c", "for i in $(seq 2000); do (:); done")
    programs = [Program(machine, user, number)
                for number, user in enumerate(("alice", "alice", "bob", "bob", ""))]
    for tenant in ("user:alice", "user:bob", "user:root"):
        marked = machine.run("nvsharectl", "save", tenant, "--at-shutdown", "on")
        assert "run: systemctl enable --now nvshare-saved.service" in marked.stderr
    machine.run("systemctl", "enable", "--now", "nvshare-saved")
    marked = machine.run("nvsharectl", "save", "user:alice", "--at-shutdown", "on")
    assert not marked.stderr
    try:
        machine.reboot()
        machine.until(lambda: machine.output(
            "systemctl", "show", "nvshare-saved", "-P", "SubState") == "exited", "all is restored")
        tenants = [one["tenant"] for one in card.clients(machine) if one["uid"]]
        assert sorted(tenants) == ["user:alice"] * 2 + ["user:bob"] * 2
        assert len(card.clients(machine)) == len(programs)
        for program in programs:
            assert program.who() == program.identity
            assert program.step() == "0"
        machine.until(lambda: json.loads(machine.output(
            "nvsharectl", "save", "--list", "--json"))["saved"] == [], "the folders are removed")
    finally:
        print(machine.output("journalctl", "--no-pager", "--lines=100", "-u", "nvshare-saved",
                             "-u", "nvshared", "-u", "nvshare-save@*"))
