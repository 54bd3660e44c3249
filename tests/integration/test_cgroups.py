# SPDX-License-Identifier: Apache-2.0
"""Programs under a memory limit of a real cgroup, where this machine permits cgroups."""

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from nvshared.machine import cgroup
from nvshared.units import MIB
from tests.integration.conftest import BUILD, Site
from tests.integration.fakehook import PATIENCE

LIMIT = 640 * MIB


@pytest.fixture
def box() -> Iterator[Path]:
    """A real control group whose memory is limited; removed at the end."""
    mine = [
        group.folder for group in cgroup.chain(Path("/proc/self/cgroup").read_text())
        if (group.folder / "memory.stat").exists()
    ]
    folder = mine[0] / f"nvshare-test-{uuid4().hex[:8]}" if mine else Path("/nowhere/at/all")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("no control group can be made here")
    file = next((f for f in ("memory.max", "memory.limit_in_bytes") if (folder / f).exists()), "")
    try:
        if not file:
            pytest.skip("memory is not limited by control groups in here")
        (folder / file).write_text(f"{LIMIT}\n")
        yield folder
    finally:
        with suppress(OSError):         # a killed process may leave the group late
            folder.rmdir()


def inside(box: Path, command: list[str]) -> list[str]:
    return ["sh", "-c", f'echo $$ > {box}/cgroup.procs && exec "$@"', "sh", *command]


def workload(site: Site, box: Path, memory: str) -> "subprocess.Popen[str]":
    command = inside(box, [str(BUILD / "nvshare-workload"), "--json", "--memory", memory,
                           "--chunk", "8MiB", "--until-told", "--rounds", "1"])
    return site.program(command, stderr=subprocess.PIPE)


def await_allocated(program: "subprocess.Popen[str]") -> None:
    assert program.stdout is not None
    while '"allocated"' not in program.stdout.readline():
        assert program.poll() is None


def test_eviction_does_not_exceed_the_memory_limit_of_the_cgroup(site: Site, box: Path) -> None:
    """Memory of the simulated card is host memory, and counts in the cgroup of its program."""
    site.start("--tq", "1")
    small = workload(site, box, "160MiB")
    await_allocated(small)
    large = workload(site, box, "600MiB")
    _, errors = large.communicate("", timeout=PATIENCE)
    # The program got an out-of-memory error, and the kernel did not kill it.
    assert large.returncode == 3, errors
    assert f"{box}/memory." in errors
    assert " is 640MiB" in errors
    for _ in range(2):
        site.holding(1000 * MIB).close()
    said, errors = small.communicate("", timeout=PATIENCE)
    assert small.returncode == 0, errors
    assert '"right": true' in said
