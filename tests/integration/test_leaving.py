# SPDX-License-Identifier: Apache-2.0
"""A thread of a program leaves a wait of the library by siglongjmp() or cancellation: everything
else goes on. The cases are those of driver/waits.def; the program is leaving.c."""

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from libhook.tests.hook.test_waits import ENTRY, LIST
from nvshared.hook.protocol import OrderRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import SIMULATOR, Process, Site, wait_until
from tests.integration.fakedaemon import FakeDaemon
from tests.integration.fakehook import PATIENCE, Hook, pump

SOURCE = Path(__file__).with_name("leaving.c")
# "copy" and "release" are no waits of the library's, but of the driver's within its wrappers.
CASES = sorted({entry[7] for entry in ENTRY.findall(LIST)} - {"", "NONE"} | {"copy", "release"})
WAYS = ("jump", "cancel")


@pytest.fixture(scope="module")
def leaving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("leaving") / "leaving"
    subprocess.run(
        ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-D_FORTIFY_SOURCE=2",
         "-o", program, SOURCE, "-pthread", f"-L{SIMULATOR}", "-l:libcuda.so.1", "-ldl"],
        check=True)
    return program


class Leaving(Process):
    """leaving.c in one of its cases."""

    def __init__(self, site: Site, program: Path, case: str, way: str, **environment: str) -> None:
        super().__init__(site.program([program, case, way], environment))

    def ends(self) -> None:
        rest, _ = self.popen.communicate(timeout=PATIENCE)
        assert self.popen.returncode == 0, (self.lines, rest)


def take_turns(site: Site, program: Leaving) -> None:
    """A rival takes the whole card, and the program gets it back."""
    program.wait_for("away")
    rival = site.hook()
    assert rival.hello() is not None
    wait_until(lambda: rival.allocate(1000 * MIB))   # another process may just have ended
    rival.want()
    pump([rival], lambda: rival.running)
    program.tell()
    until_wanted(rival)
    rival.close()
    program.wait_for("over")
    program.tell()
    program.ends()


def until_wanted(rival: Hook) -> None:
    while not rival.paced:
        rival.obey_next()


def shared(site: Site, leaving: Path, case: str, way: str, **environment: str) -> Leaving:
    daemon = site.start("--tq", "200ms")
    return Leaving(site, leaving, case, way, DAEMON=str(daemon.pid), **environment)


def simply(site: Site, leaving: Path, case: str, way: str) -> None:
    take_turns(site, shared(site, leaving, case, way))


def at_the_gate(site: Site, leaving: Path, case: str, way: str) -> None:
    program = shared(site, leaving, case, way)
    program.wait_for("gate")
    rival = site.holding()
    program.tell()
    program.wait_for("left")
    rival.close()
    program.tell()
    take_turns(site, program)


def with_another_process(site: Site, leaving: Path, case: str, way: str) -> None:
    site.start("--tq", "200ms")
    owner = Leaving(site, leaving, "own", way)
    handle = owner.line()
    program = Leaving(site, leaving, case, way, OWNER=str(owner.popen.pid))
    program.tell(handle)
    program.wait_for("left")
    owner.end()
    program.tell()
    take_turns(site, program)


def without_daemon(site: Site, leaving: Path, case: str, way: str) -> None:
    site.socket.parent.mkdir(exist_ok=True)
    program = Leaving(site, leaving, case, way, NVSHARE_REQUIRED="1")
    program.wait_for("left")
    site.start("--tq", "200ms")
    program.tell()
    take_turns(site, program)


def with_a_full_queue(site: Site, leaving: Path, case: str, way: str) -> None:
    site.socket.parent.mkdir(exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(site.socket))
    listener.listen(0)
    site.sockets.append(listener)
    waiting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    waiting.connect(str(site.socket))
    site.sockets.append(waiting)
    program = Leaving(site, leaving, case, way)
    program.wait_for("left")
    listener.close()
    site.socket.unlink()
    site.start("--tq", "200ms")
    program.tell()
    take_turns(site, program)


def without_room(site: Site, leaving: Path, case: str, way: str) -> None:
    site.environment["NVSHARE_SIM_FAIL"] = "cuCtxCreate_v2:<1024M"
    program = shared(site, leaving, case, way)
    program.wait_for("full")
    program.tell()
    program.wait_for("left")
    program.tell()
    take_turns(site, program)


def while_it_moves(site: Site, leaving: Path, case: str, way: str) -> None:
    """The played daemon evicts the program slowly; then the program gets its turn again."""
    site.environment["NVSHARE_SIM_COPY_RATE"] = str(48 * MIB)
    daemon = FakeDaemon(site)
    program = Leaving(site, leaving, case, way)
    daemon.accept()
    program.wait_for("moving")
    daemon.stop()
    daemon.send(OrderRecord(Type.EVICT, number=77, host=512 * MIB))
    wait_until(daemon.has_no_unread_order)
    program.tell()
    daemon.until(Type.MOVED, number=77)
    give_turns(daemon, program)


def while_parked(site: Site, leaving: Path, case: str, way: str) -> None:
    daemon = FakeDaemon(site)
    program = Leaving(site, leaving, case, way)
    daemon.accept()
    program.wait_for("park")
    daemon.stop()
    daemon.move(Type.EVICT)
    daemon.send(OrderRecord(Type.PARK, number=78, host=512 * MIB))
    daemon.until(Type.PARKED)
    program.tell()
    program.wait_for("left")
    daemon.send(OrderRecord(Type.UNPARK))
    give_turns(daemon, program)


def give_turns(daemon: FakeDaemon, program: Leaving) -> None:
    daemon.run()
    if program.lines[-1] != "left":
        program.wait_for("left")
    program.tell()
    program.wait_for("away")
    daemon.stop()
    daemon.move(Type.EVICT)
    program.tell()
    daemon.run()
    program.wait_for("over")
    program.tell()
    program.ends()


RUNS: dict[str, Callable[[Site, Path, str, str], None]] = {
    "gate": at_the_gate, "open": with_another_process, "close": with_another_process,
    "required": without_daemon, "busy": with_a_full_queue, "room": without_room,
    "managed": while_it_moves, "moving": while_it_moves, "parked": while_parked,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_everything_goes_on_after_a_thread_has_left_a_wait(
    site: Site, leaving: Path, case: str, way: str
) -> None:
    RUNS.get(case, simply)(site, leaving, case, way)
