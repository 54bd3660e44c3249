# SPDX-License-Identifier: Apache-2.0
"""A thread of a program leaves a wait of the library by siglongjmp(), an exception or cancellation:
everything else goes on. The cases are those of driver/waits.def; the program is leaving.c.

The program stops before each wait and prints the addresses on its stack. The thread leaves from
where the stack has a function that waits.def names for the case, or from the driver's wait."""

import functools
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from libhook.tests.hook.test_waits import ENTRY, LIST
from nvshared.hook.protocol import OrderRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import BUILD, SIMULATOR, Process, Site, wait_until
from tests.integration.fakedaemon import FakeDaemon
from tests.integration.fakehook import PATIENCE, Hook, pump

SOURCE = Path(__file__).with_name("leaving.c")
# Each case's waits: (file, function, what it calls), and whether a thread is cancelled there.
WAITS = {(case, *place): cancelled == "CANCELLED"
         for *place, _, _, cancelled, _, case in ENTRY.findall(LIST) if case}
# Waits in which other threads are kept: the drain of exclusively(), and the copy of a block.
WAITS["draining", "block/exclusive.c", "drain", "drain_all"] = False
WAITS["service", "block/swap.c", "pipeline_complete", "cuEventSynchronize"] = False
# "copy" and "release" are no waits of the library's, but of the driver's within its wrappers.
CASES = sorted({entry[7] for entry in ENTRY.findall(LIST)} - {"", "NONE"} | {"copy", "release"})
WAYS = ("jump", "throw", "cancel")
# Below what contexts leave of the card, so that what a program may allocate never changes.
CAPACITY = 800 * MIB
REST = 780 * MIB                        # has no room beside the program's memory
# Of a program beside another process that pins memory: below what the pinned memory leaves.
LIMIT = 700 * MIB


@pytest.fixture(scope="module")
def leaving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leaving")
    flags = ["-Wall", "-Wextra", "-Werror", "-g", "-O1", "-D_FORTIFY_SOURCE=2", "-fexceptions",
             "-fnon-call-exceptions", "-pthread"]
    subprocess.run(["gcc", "-std=gnu11", *flags, "-c", SOURCE, "-o", folder / "leaving.o"],
                   check=True)
    subprocess.run(
        ["g++", *flags, "-o", folder / "leaving", SOURCE.with_name("throwing.cc"),
         folder / "leaving.o", f"-L{SIMULATOR}", "-l:libcuda.so.1", "-ldl"], check=True)
    return folder / "leaving"


@functools.cache
def functions_at(address: str) -> list[tuple[str, str]]:
    """(file, function) at an address of the library, the innermost inlined function first."""
    call = f"{int(address, 16) - 1:x}"       # the address is that to which a call returns
    answer = subprocess.run(["addr2line", "-f", "-i", "-e", BUILD / "libnvshare.so", call],
                            check=True, capture_output=True, text=True).stdout.splitlines()
    return [(file.partition("/src/")[2].partition(":")[0], function)
            for function, file in zip(answer[::2], answer[1::2], strict=True)]


def answer_to(case: str, addresses: list[str]) -> str:
    """"stay" or "cancelled" for a thread that is in a wait of the case, else "go on"."""
    in_driver = addresses[0][0] == "d"
    if in_driver and case in ("copy", "release"):
        return "stay"
    # What a function calls that is not the library's is not on the stack; drain_context() jumps on.
    stack = [place for address in addresses if address[0] == "l"
             for place in functions_at(address[1:])]
    inner: set[str] = set()
    for file, function in stack:
        for (key, *place, called), cancelled in WAITS.items():
            if (case, file, function) == (key, *place) and (not inner or called in inner):
                # The simulated driver's waits are no cancellation points.
                return "cancelled" if cancelled and not in_driver else "stay"
        inner |= {"drain_context", "drain_ending"} if function == "drain_one" else {function}
    return "go on"


class Leaving(Process):
    """leaving.c in one of its cases."""

    def __init__(self, site: Site, program: Path, case: str, way: str, **environment: str) -> None:
        super().__init__(site.program([program, case, way], environment))

    def wait_for(self, line: str) -> None:
        """Tells the program meanwhile which wait is the one in question."""
        while line not in self.lines[-1:]:
            got = self.line()
            if got.startswith("waits "):
                self.tell(answer_to(got.split()[1], got.split()[2:]))
            elif got == "" and self.popen.poll() is not None:
                pytest.fail(f"it ended before {line!r}; it said {self.lines}")

    def ends(self) -> None:
        rest, _ = self.popen.communicate(timeout=PATIENCE)
        assert self.popen.returncode == 0, (self.lines, rest)


def start_daemon(site: Site) -> subprocess.Popen[str]:
    """With a quantum of an hour: a program hands over as idle after its thread has left a call."""
    return site.start("--tq", "3600", "--capacity", str(CAPACITY))


def take_turns(site: Site, program: Leaving) -> None:
    """A rival takes the whole card, and the program gets it back."""
    program.wait_for("away")
    rival = site.hook()
    assert rival.hello() is not None
    wait_until(lambda: rival.allocate(REST))   # another process may just have ended
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
    daemon = start_daemon(site)
    return Leaving(site, leaving, case, way, DAEMON=str(daemon.pid), **environment)


def simply(site: Site, leaving: Path, case: str, way: str) -> None:
    take_turns(site, shared(site, leaving, case, way))


def at_the_gate(site: Site, leaving: Path, case: str, way: str) -> None:
    program = shared(site, leaving, case, way)
    program.wait_for("gate")
    rival = site.holding(REST)
    program.tell()
    program.wait_for("left")
    rival.close()
    program.tell()
    take_turns(site, program)


def with_another_process(site: Site, leaving: Path, case: str, way: str) -> None:
    start_daemon(site)
    owner = Leaving(site, leaving, "own", way)
    handle = owner.line()
    program = Leaving(site, leaving, case, way, OWNER=str(owner.popen.pid),
                      NVSHARE_MEMORY_LIMIT=str(LIMIT))
    program.tell(handle)
    program.wait_for("left")
    owner.end()
    program.tell()
    take_turns(site, program)


def without_daemon(site: Site, leaving: Path, case: str, way: str) -> None:
    site.socket.parent.mkdir(exist_ok=True)
    program = Leaving(site, leaving, case, way, NVSHARE_REQUIRED="1")
    program.wait_for("left")
    start_daemon(site)
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
    start_daemon(site)
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
    """The thread leaves while the played daemon evicts; then the program gets its turn again."""
    site.environment["NVSHARE_SIM_COPY_RATE"] = str(1 << 40)    # copies pass clock_nanosleep()
    daemon = FakeDaemon(site)
    program = Leaving(site, leaving, case, way)
    daemon.accept()
    program.wait_for("moving")
    daemon.stop()
    daemon.send(OrderRecord(Type.EVICT, number=77, host=512 * MIB))
    program.tell()
    program.wait_for("gone")
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
