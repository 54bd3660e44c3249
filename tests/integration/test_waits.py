# SPDX-License-Identifier: Apache-2.0
"""A program that waits logs the reason if NVSHARE_VERBOSE is set."""

import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nvshared.hook.packets import decode_report
from nvshared.hook.protocol import Type
from tests.integration.conftest import BUILD, Site, public_build, wait_until
from tests.integration.fakedaemon import FakeDaemon
from tests.integration.fakehook import PATIENCE
from tests.integration.programs import Program as Own

LARGE = "700MiB"                        # two such programs do not fit on the card
SMALL = "8MiB"
LONELY = 64997                          # a user without other processes


class Program:
    """A workload, and its lines on standard error."""

    def __init__(self, site: Site, memory: str, *options: str, **environment: str) -> None:
        self._said = Path(site.folder / f"said-{len(site.started)}")
        with self._said.open("w") as errors:
            self.popen = site.program(
                [BUILD / "nvshare-workload", "--memory", memory, "--used", "10%", "--json",
                 *options], environment, stdout=subprocess.DEVNULL, stderr=errors)

    @property
    def said(self) -> list[str]:
        return [line.partition(": ")[2] for line in self._said.read_text().splitlines()]

    def says(self, line: str) -> Callable[[], bool]:
        return lambda: any(one.startswith(line) for one in self.said)

    def ends_well(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        assert self.popen.wait(PATIENCE) == 0, self.said


@pytest.mark.parametrize("trouble", ["none", "refuses"])
def test_program_with_nvshare_required_waits_for_the_daemon(site: Site, trouble: str) -> None:
    if trouble == "refuses":
        daemon = site.start("--max-clients", "1")
        other = site.hook()
        assert other.hello() is not None
    program = Program(site, SMALL, "--steps", "2", NVSHARE_REQUIRED="1")
    why = "is not running" if trouble == "none" else "refuses this program: it has too many clients"
    wait_until(program.says(f"waits for nvshared, which {why}"))
    assert program.popen.poll() is None
    if trouble == "refuses":
        assert daemon.poll() is None
        other.close()
    else:
        site.start()
    program.ends_well()
    assert [line.split(",")[0] for line in program.said] == ["waits for nvshared", "goes on"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_program_with_nvshare_required_waits_for_a_thread(public_site: Site) -> None:
    """The user has no process left, as under TasksMax=, when the library needs a thread."""
    site = public_site
    site.start()
    build = public_build(site)
    program = subprocess.Popen(
        [build / "nvshare-workload", "--memory", SMALL, "--steps", "2"], cwd=build, text=True,
        env={**site.environment, "LD_LIBRARY_PATH": str(build / "simulator"),
             "LD_PRELOAD": str(build / "libnvshare.so"), "NVSHARE_SOCKET": str(site.socket),
             "NVSHARE_REQUIRED": "1"},
        user=LONELY, group=LONELY, extra_groups=[], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1, 1000)))
    site.started.append(program)
    assert program.stderr is not None
    assert "no thread for sharing" in program.stderr.readline()
    assert program.poll() is None
    subprocess.run(["prlimit", f"--pid={program.pid}", "--nproc=1000"], check=True,
                   user=LONELY, group=LONELY, extra_groups=[])
    _, said = program.communicate(timeout=PATIENCE)
    assert (program.returncode, said) == (0, "")


def test_waiting_program_logs_once_that_the_daemon_ended(site: Site) -> None:
    daemon = site.start("--tq", "3600")
    holder = site.holding()        # a fake hook never becomes idle
    silent = Program(site, LARGE, "--steps", "1")
    waiter = Program(site, LARGE, "--steps", "1", NVSHARE_VERBOSE="1")
    place = "waits for its turn on GPU 0: its place in the queue is"
    wait_until(lambda: any(waiter.says(f"{place} {number}")() for number in (1, 2)))
    assert silent.said == []
    daemon.terminate()
    daemon.wait()
    wait_until(waiter.says("nvshared is not running, and this program waits for it"))
    holder.close()
    site.start("--tq", "3600")
    for program in (waiter, silent):
        program.ends_well()
    # On a busy machine the program may wait for its turn once more and print that again.
    said = [line.split(",")[0].split(":")[0] for line in waiter.said]
    assert said[0] == "waits for its turn on GPU 0"
    assert said.count("nvshared is not running") == 1
    assert said[-1] == "goes on"


ASKS = '''
address = allocate(1000 * MIB, result=2)
sys.stdin.readline()
'''


def test_program_waiting_for_the_reply_to_a_commit_request_logs_the_reason(site: Site) -> None:
    daemon = FakeDaemon(site)
    site.environment["NVSHARE_VERBOSE"] = "1"
    program = Own(site, ASKS)
    daemon.connect()
    daemon.send(daemon.limits)
    while (asked := decode_report(daemon.connection.recv(4096))).type is not Type.COMMIT:
        continue
    assert program.popen.stderr is not None
    line = program.popen.stderr.readline()
    assert "waits for GPU 0: nvshared has not yet granted the memory that it asked for" in line
    daemon.send(daemon.answer(asked))
    assert "goes on" in program.popen.stderr.readline()
    daemon.let_finish(program)
