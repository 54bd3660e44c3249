# SPDX-License-Identifier: Apache-2.0
"""A child that is forked at any instruction inherits no descriptor and no held lock of the library,
and its CUDA calls return the driver's errors. The program is forks.c."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Site
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


@pytest.fixture
def dead_sockets() -> Iterator[None]:
    """Socket files of killed programs: a program that exports memory tries to connect to each."""
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
    program = Life(site, forks, seconds, tq="20ms")
    popen = program.popen
    said, _ = popen.communicate(timeout=PATIENCE + int(seconds))
    assert popen.returncode == 0, said
    # Without the library, too, the driver returns this error for each of the 20 calls.
    assert results(said) == {f"child{20 * f' {NOT_INITIALIZED}'}"}
    assert "inherited" not in said
