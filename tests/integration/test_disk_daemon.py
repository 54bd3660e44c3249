# SPDX-License-Identifier: Apache-2.0
"""Programs that need more than card and host memory have their turns with the help of a disk."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvshared.units import MIB
from tests.integration.conftest import ROOT, Site, kill, wait_until
from tests.integration.fakehook import PATIENCE, pump
from tests.integration.programs import Program
from tests.integration.servicemanager import ServiceManager
from tests.integration.test_disk import faulty_disk
from tests.integration.test_kills import finish, follow
from tests.integration.test_neighbour import LINKED

PROGRAMS = 6
# The programs have 288 MiB together, of which card and host memory hold 176 MiB at most.
SETTINGS = ("--tq", "100ms", "--capacity", "112MiB", "--swap-budget", "64MiB",
            "--park-after", "60s", "--neighbour", "off")


@pytest.fixture
def folder(site: Site) -> Path:
    made = site.folder / "swap"
    made.mkdir()
    return made


@pytest.fixture
def manager(site: Site) -> Iterator[ServiceManager]:
    """A service manager that keeps the daemon's descriptors, as systemd does."""
    made = ServiceManager(site)
    yield made
    site.close()
    made.close()


def start(
    site: Site, folder: Path, *options: str, trace: str = "trace", **environment: str
) -> tuple[subprocess.Popen[str], Path]:
    path = site.folder / trace
    settings = (*SETTINGS, "--disk", f"{folder},1GiB", "--trace", str(path), *options)
    return site.start(*settings, **environment), path


def program(site: Site, seed: int, steps: int | None = 2) -> subprocess.Popen[str]:
    """A program that checks its memory in each step. `steps` None: it runs until finish()."""
    length = ["--until-told"] if steps is None else ["--steps", str(steps)]
    return site.workload(
        "--memory", "48MiB", "--chunk", "4MiB", *length, "--kernel-us", "2000",
        "--seed", str(seed), "--json")


def stored(trace: Path) -> Iterator[dict[str, Any]]:
    """Lines of clients with memory on the disk, as they come."""
    return (line for line in follow(trace) if line.get("memory", {}).get("disk"))


def files_of(pid: int, folder: Path) -> list[str]:
    found = []
    for one in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(one.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    return found


@pytest.mark.parametrize("killed", ["program", "daemon"])
def test_kill_of_program_or_daemon_while_all_tiers_hold_memory_keeps_bytes_of_other_programs(
    site: Site, folder: Path, killed: str
) -> None:
    options = ("--swap-budget", "128MiB", "--neighbour", "on")
    daemon, trace = start(site, folder, *options, **LINKED)
    programs = [program(site, seed, None) for seed in range(1, PROGRAMS + 1)]
    memory: dict[int, dict[str, int]] = {}
    for line in follow(trace):          # until each tier holds memory of some program
        if "pid" in line and "memory" in line:
            memory[line["pid"]] = line["memory"]
            if all(any(one[tier] for one in memory.values())
                   for tier in ("host", "borrowed", "disk")):
                break
    victim = daemon
    if killed == "program":
        victim = next(one for one in programs if memory.get(one.pid, {}).get("disk"))
        programs.remove(victim)
    kill(victim)
    if killed == "daemon":
        daemon, trace = start(site, folder, *options, trace="second", **LINKED)
        assert any(line.get("event") == "joined" for line in stored(trace))
    finish(programs)
    assert "could not go to the disk" not in site.log.read_text()
    wait_until(lambda: not files_of(daemon.pid, folder))


# A client that keeps the file which comes with STORE, and sends it to another process.
STORING = """
import signal, socket, sys
from nvshared.hook.protocol import Type
from tests.integration.fakehook import Hook
from tests.records import decode_order

files = []

class Storing(Hook):
    def hear(self):
        packet, more, _, _ = socket.recv_fds(self.socket, 4096, 8)
        files.extend(more)
        return decode_order(packet) if packet else None

    def obey(self, order):
        if order.type is Type.STORE:
            self.say(Type.STORED, number=order.number)
        elif order.type is Type.STOP:           # it is idle, and wants no other turn
            self.granted = False
            self.say(Type.STOPPED)
        else:
            super().obey(order)

other = socket.socket(fileno=int(sys.argv[3]))
hook = Storing(sys.argv[1], bytes.fromhex(sys.argv[2]))
hook.hello()
hook.allocate(96 << 20)
hook.want()
while not hook.running:
    hook.obey_next()
hook.say(Type.IDLE)
other.send(b"x")
while not files:
    hook.obey_next()
socket.send_fds(other, [b"x"], files)
signal.pause()
"""


def store(site: Site) -> tuple["subprocess.Popen[str]", int]:
    """A client's process that has a file on the disk, and a descriptor of it in this process."""
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE)
    with ours, theirs:
        popen = subprocess.Popen(
            [sys.executable, "-c", STORING, str(site.socket), site.uuids[0].hex(),
             str(theirs.fileno())], cwd=ROOT, text=True, pass_fds=[theirs.fileno()])
        site.started.append(popen)
        ours.recv(1)
        other = site.wanting(200 * MIB)         # both do not fit, so the first one is swapped
        pump([other], lambda: bool(select.select([ours], [], [], 0.05)[0]))
        _, (file,), _, _ = socket.recv_fds(ours, 1, 1)
    return popen, file


@pytest.mark.parametrize("restarted", [False, True], ids=["same daemon", "next daemon"])
def test_file_of_an_ended_client_is_emptied_while_another_process_writes_to_it(
    site: Site, folder: Path, manager: ServiceManager, restarted: bool
) -> None:
    settings = ("--tq", "100ms", "--capacity", "224MiB", "--swap-budget", "256MiB",
                "--park-after", "100ms", "--neighbour", "off", "--disk", f"{folder},1GiB")
    daemon = manager.start(*settings)
    client, file = store(site)
    if restarted:
        kill(daemon)
    kill(client)
    if restarted:
        daemon = manager.start(*settings)
    for offset in range(0, 64 * MIB, 8 * MIB):
        os.posix_fallocate(file, offset, 8 * MIB)
        wait_until(lambda: os.fstat(file).st_blocks == 0)
    wait_until(lambda: "it has ended, and another process has its file" in site.log.read_text())
    assert files_of(daemon.pid, folder)
    os.close(file)
    wait_until(lambda: not files_of(daemon.pid, folder))
    manager.wait(lambda: not any(name.startswith("disk-") for name in manager.kept))


def test_next_daemon_has_the_file_of_a_running_program_and_keeps_its_bytes(
    site: Site, folder: Path, manager: ServiceManager
) -> None:
    trace = site.folder / "trace"
    settings = (*SETTINGS, "--disk", f"{folder},1GiB", "--trace")
    daemon = manager.start(*settings, str(trace))
    programs = [program(site, seed, None) for seed in range(1, PROGRAMS + 1)]
    next(stored(trace))
    kill(daemon)
    daemon = manager.start(*settings, str(site.folder / "second"))
    next(line for line in stored(site.folder / "second") if line.get("event") == "joined")
    assert files_of(daemon.pid, folder)
    finish(programs)
    wait_until(lambda: not files_of(daemon.pid, folder))
    assert "could not go to the disk" not in site.log.read_text()
    assert "bytes to the disk, and may have" not in site.log.read_text()


def test_disk_read_that_hangs_delays_no_other_program_and_is_reported(
    site: Site, folder: Path
) -> None:
    _, trace = start(site, folder, "--capacity", "224MiB", "--swap-budget", "128MiB",
                     "--park-after", "100ms", "--stuck-after", "500ms")
    idle = Program(site, '''
address = allocate(96 << 20)
data = noise(96 << 20)
put(address, data)
away()
assert get(address, 96 << 20) == data
''', within=faulty_disk(site))
    assert idle.hears() == "away"
    hook = site.holding(200 << 20)
    next(line for line in stored(trace) if line["pid"] == idle.popen.pid)
    hook.close()
    switch = site.folder / "pread"
    switch.touch()
    idle.go_on()
    wait_until((site.folder / "hangs").exists)
    finish([program(site, seed) for seed in (1, 2, 3)])
    assert idle.popen.poll() is None
    reported = f"[{idle.popen.pid}] does not answer, loading for"
    wait_until(lambda: reported in site.log.read_text())
    switch.unlink()
    idle.ends_well()
