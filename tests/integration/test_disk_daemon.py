# SPDX-License-Identifier: Apache-2.0
"""Programs that need more than card and host memory have their turns with the help of a disk."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Site, kill, wait_until
from tests.integration.programs import Program
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
