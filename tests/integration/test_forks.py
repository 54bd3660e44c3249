# SPDX-License-Identifier: Apache-2.0
"""A child may be forked at any instruction. It holds nothing of its parent's, and each call of CUDA
in it is answered as the driver answers it. The program is forks.c."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, Site
from tests.integration.fakehook import PATIENCE
from tests.integration.test_life import LINKED, SOURCE, Life, compiled

NOT_INITIALIZED = 3


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = SOURCE.with_name("forks.c")
    return compiled(tmp_path_factory.mktemp("forks"), *LINKED, source=source)


def results(said: str) -> set[str]:
    """The distinct lists of results that driver calls in forked children returned."""
    return {line for line in said.splitlines() if line.startswith("child ")}


def unshared(site: Site, forks: Path) -> set[str]:
    done = subprocess.run(
        [forks, "release"], cwd=ROOT, env=site.environment, capture_output=True, text=True,
        timeout=PATIENCE, check=True)
    return results(done.stdout)


def test_child_forked_during_a_context_release_gets_the_drivers_error(
    site: Site, forks: Path
) -> None:
    said = results(Life(site, forks, "release").ends())
    assert said == unshared(site, forks)
    assert said == {f"child{20 * f' {NOT_INITIALIZED}'}"}


@pytest.fixture
def dead_sockets() -> Iterator[None]:
    """Leaves sockets of killed programs, to each of which the next exporter connects."""
    paths = [Path(f"/dev/shm/nvshare-{number:016x}{os.getpid():016x}") for number in range(2000)]
    for path in paths:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.bind(str(path))
        os.utime(path, (0, 0))
    yield
    for path in paths:
        path.unlink(missing_ok=True)


@pytest.mark.usefixtures("dead_sockets")
@pytest.mark.parametrize("seconds", ["1", pytest.param("10", marks=pytest.mark.long)])
def test_forked_children_hold_no_card_memory_and_no_lock(
    site: Site, forks: Path, seconds: str
) -> None:
    program = Life(site, forks, "everything", seconds, tq="20ms")
    popen = program.popen
    said, _ = popen.communicate(timeout=PATIENCE + int(seconds))
    assert popen.returncode == 0, said
    assert results(said) == unshared(site, forks)
    assert "inherited" not in said
