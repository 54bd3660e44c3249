# SPDX-License-Identifier: Apache-2.0
"""A program that changes its stderr, descriptors, scheduling or permitted system calls runs and
shares the card as any other program. The program is resources.c."""

import fcntl
import os
import platform
import resource
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Site, wait_until
from tests.integration.fakehook import PATIENCE
from tests.integration.test_life import LINKED, SOURCE, Life, compiled, taken, until_it_waits

# An invalid setting: the library logs a line when the program first uses the card.
LINE = {"NVSHARE_KEEP_FREED_MS": "none"}
SAID = "NVSHARE_KEEP_FREED_MS=none is not a number"


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = SOURCE.with_name("resources.c")
    return compiled(tmp_path_factory.mktemp("resources"), *LINKED, source=source)


def moves(program: Life) -> None:
    hook = taken(program)
    until_it_waits(hook)
    hook.close()
    program.ends()


@pytest.mark.parametrize("action", [
    pytest.param("sandbox", id="membarrier is refused"),
    pytest.param("sandbox-without-ppoll", id="ppoll is refused", marks=pytest.mark.skipif(
        platform.machine() == "aarch64", reason="poll(3) is the system call ppoll(2) there")),
    pytest.param("small-stacks", id="threads have small stacks"),
    # The program's output would otherwise go to the daemon's socket.
    pytest.param("closed-streams", id="no socket gets the number of a closed standard stream"),
])
def test_program_with_unusual_resources_takes_turns(
    site: Site, resources: Path, action: str
) -> None:
    moves(Life(site, resources, action))


def test_program_that_takes_descriptor_numbers_of_the_library_keeps_open_files(
    site: Site, resources: Path, tmp_path: Path
) -> None:
    moves(Life(site, "env", "-C", tmp_path, resources, "takes-descriptors"))


def test_program_that_can_start_no_thread_runs_unshared(site: Site, resources: Path) -> None:
    said = Life(site, resources, "no-thread").ends()
    assert "no thread for sharing" in said


def fields(task: Path) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())


def is_urgent_allowed() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return True


@pytest.mark.skipif(not is_urgent_allowed(), reason="real-time scheduling is not allowed here")
def test_service_threads_have_default_scheduling_all_processors_and_no_signals(
    site: Site, resources: Path
) -> None:
    program = Life(site, resources, "threads")
    program.wait_for("started")
    own = fields(Path("/proc/self"))["Cpus_allowed_list"]

    def tasks() -> dict[Path, dict[str, str]]:
        return {
            task: status for task in Path(f"/proc/{program.popen.pid}/task").iterdir()
            if (status := fields(task))["Name"].startswith("nvshare")
        }

    # Each thread gives itself its name when it is ready. A thread that the driver starts for the
    # library's own work has the name of the thread that made it.
    wait_until(lambda: {"nvshare", "nvshare-ipc"} <= {one["Name"] for one in tasks().values()})
    for task, status in tasks().items():
        assert os.sched_getscheduler(int(task.name)) == os.SCHED_OTHER
        assert status["Cpus_allowed_list"] == own
        blocked = int(status["SigBlk"], 16)
        assert all(
            blocked >> number - 1 & 1
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
    program.tell()
    program.ends()


def test_library_logs_no_line_into_a_file_that_the_program_opened_as_descriptor_2(
    site: Site, resources: Path, tmp_path: Path
) -> None:
    Life(site, "env", "-C", tmp_path, resources, "takes-stderr", **LINE, NVSHARE_DEBUG="1").ends()


def test_stderr_that_the_program_redirects_to_a_pipe_gets_the_librarys_lines(
    site: Site, resources: Path
) -> None:
    Life(site, resources, "redirects-stderr", **LINE, NVSHARE_DEBUG="1").ends()


def ended(site: Site, program: Path, stderr: int, prepare: Callable[[], None] | None = None) -> int:
    site.start()
    popen = site.program([program, "plain"], LINE, stderr=stderr, preexec_fn=prepare)
    return popen.wait(timeout=PATIENCE)


def ends(kind: str) -> tuple[int, int]:
    """The read end and the write end of a pipe, socket or terminal."""
    if kind == "socket":
        one, other = socket.socketpair()
        return one.detach(), other.detach()
    return os.pipe() if kind == "pipe" else os.openpty()


def fill(write_end: int) -> None:
    os.set_blocking(write_end, False)
    try:
        while True:
            os.write(write_end, bytes(4096))
    except BlockingIOError:
        os.set_blocking(write_end, True)


@pytest.mark.parametrize(("kind", "has_reader"), [
    ("pipe", True), ("terminal", True), ("pipe", False), ("socket", False)])
def test_program_with_a_full_or_unread_stderr_runs_to_its_end(
    site: Site, resources: Path, kind: str, has_reader: bool
) -> None:
    read_end, write_end = ends(kind)
    if has_reader:
        fill(write_end)
    else:
        os.close(read_end)
    assert ended(site, resources, write_end) == 0
    os.close(write_end)
    if has_reader:
        os.close(read_end)


def test_stderr_pipe_of_another_user_gets_the_librarys_lines(
    site: Site, resources: Path, tmp_path: Path
) -> None:
    """The program has no right to open the pipe by /proc/self/fd/2."""
    if os.geteuid() != 0:
        pytest.skip("another user's program is started by root only")
    read_end, write_end = os.pipe()
    os.fchown(write_end, 1, 1)
    os.fchmod(write_end, 0o600)
    fcntl.fcntl(read_end, fcntl.F_SETFL, os.O_NONBLOCK)
    limited = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all")
    site.start()
    popen = site.program([*limited, resources, "plain"], LINE, stderr=write_end)
    assert popen.wait(timeout=PATIENCE) == 0
    assert SAID in os.read(read_end, 65536).decode()
    os.close(read_end)
    os.close(write_end)


def test_stderr_at_the_file_size_limit_does_not_end_the_program(
    site: Site, resources: Path, tmp_path: Path
) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    with (tmp_path / "stderr").open("wb") as file:
        assert ended(site, resources, file.fileno(), limit) == 0


@pytest.mark.parametrize("kind", ["pipe", "file", "socket"])
def test_stderr_with_a_reader_gets_the_librarys_line(
    site: Site, resources: Path, tmp_path: Path, kind: str
) -> None:
    if kind == "file":
        write_end = os.open(tmp_path / "stderr", os.O_RDWR | os.O_CREAT)
        read_end = os.open(tmp_path / "stderr", os.O_RDONLY)
    else:
        read_end, write_end = ends(kind)
    assert ended(site, resources, write_end) == 0
    os.close(write_end)
    assert SAID in os.read(read_end, 65536).decode()
    os.close(read_end)
