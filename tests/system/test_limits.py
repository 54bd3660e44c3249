# SPDX-License-Identifier: Apache-2.0
"""Programs in control groups whose memory is limited, under a kernel that kills who exceeds it.

The simulated card's memory is memory of the host, which counts in the group of whoever uses it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from nvshared.units import MIB
from tests.system import card
from tests.system.card import Launch
from tests.system.container import Container

VERSION_1 = "/sys/fs/cgroup/memory"
KILLED = "cat {0}/memory.events {0}/memory.oom_control 2>/dev/null | sed -n 's/^oom_kill //p'"


@dataclass(frozen=True)
class Box:
    """A group with a limit."""

    folder: str
    file: str                           # where the limit is written
    enter: tuple[str, ...]              # before a command that is to run in it


Boxes = Callable[[str, int], Box]       # a name, and MiB


@pytest.fixture(scope="module")
def boxes(running: Container) -> Boxes:
    """Makes groups: systemd's slices, or where memory is still version 1's, folders of that."""
    if "memory" in running.output("cat", "/sys/fs/cgroup/cgroup.controllers").split():
        def unit(name: str, limit: int) -> Box:
            running.write(
                f"/etc/systemd/system/{name}.slice",
                f"[Slice]\nMemoryMax={limit}M\nMemorySwapMax=0\n")
            running.run("systemctl", "start", f"{name}.slice")
            folder = f"/sys/fs/cgroup/{name}.slice"
            return Box(folder, f"{folder}/memory.max", (
                "systemd-run", "--quiet", "--scope", f"--slice={name}"))

        return unit
    running.run("mkdir", VERSION_1)
    running.run("mount", "-t", "cgroup", "-o", "memory", "cgroup", VERSION_1)
    running.run("systemctl", "restart", "nvshared")     # which sees what was mounted before

    def group(name: str, limit: int) -> Box:
        mine = running.output("sed", "-n", "s/.*:memory://p", "/proc/self/cgroup")
        folder = f"{VERSION_1}{mine.rstrip('/')}/{name}"
        running.run("mkdir", folder)
        running.run("sh", "-c", f"echo {limit * MIB} >{folder}/memory.limit_in_bytes")
        return Box(folder, f"{folder}/memory.limit_in_bytes", (
            "sh", "-c", f'echo $$ >{folder}/cgroup.procs && exec "$@"', "sh"))

    return group


def killed(running: Container, box: Box) -> str:
    """How many in it the kernel has killed."""
    return running.output("sh", "-c", KILLED.format(box.folder))


def test_allocation_beyond_the_cgroup_limit_fails_and_names_the_limit(
    running: Container, launch: Launch, boxes: Boxes
) -> None:
    box = boxes("little", 160)
    program = launch(running, "", memory=150, before=box.enter)
    running.until(lambda: not program.runs, "it has ended")
    said = program.kill()
    assert "out of memory" in said      # the program's own words, so it was not killed
    line, = (one for one in said.splitlines() if "libnvshare" in one)
    assert line.endswith(f"{box.file} is 160MiB")
    assert killed(running, box) == "0"
    journal = running.output("journalctl", "--no-pager", "--unit=nvshared.service")
    assert "is out of memory, because what leaves the card must fit into host memory" in journal
    assert f"{box.file} is 160MiB" in journal


def test_program_within_the_cgroup_limit_is_evicted_and_loaded(
    running: Container, launch: Launch, boxes: Boxes
) -> None:
    running.run("nvsharectl", "set-tq", "1")
    box = boxes("enough", 512)
    turns = card.status(running)["gpus"][0]["turns"]
    programs = [
        launch(running, "", memory=128, seed=1, before=box.enter),
        launch(running, "bob", memory=200, seed=2),
    ]
    running.until(
        lambda: card.status(running)["gpus"][0]["turns"] - turns > 4, "they take turns")
    card.finish(programs)
    assert killed(running, box) == "0"
